"""Room on nodes that is reserved for nobody: what an owner left behind that is gone, or a move of its.

It keeps pods away for ever, because only whoever has the place gives its room back (W16: p2 leaked
allocations). A place that a move has reserved is somebody's, although no pod stands there yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from farmd.doctor.model import Finding, Release, Removal
from farmd.doctor.survey import Survey
from farmd.mutation import Change, Mutation
from store import codec, operations
from store.entry import Entry
from store.keys import Keys
from store.nodes import Reserved
from store.operations import Operation
from store.work import Work

Place = tuple[str, str]

CODES = frozenset({"stale-reservation", "stale-nomination"})


def check(survey: Survey) -> list[Finding]:
    """Nothing at all where a tree that matters is in doubt."""
    if not survey.proven("rcs", "daemonsets", "pods", "intent", "work"):
        return []
    taken = needed(survey)
    taken |= {survey.keys.intent_parts(entry.key) for entry in survey.well_formed("intent")}
    reserved = [
        Finding(
            "stale-reservation",
            f"{survey.short(entry.key)}/{instance}",
            "its node reserves room for it, and no such pod is there or on its way",
            f"farmctl doctor --fix {survey.short(entry.key)}/{instance} gives the room back",
            Removal("reserved", node, (), release=release_of(survey.keys, entry, node, instance)),
        )
        for entry, book in survey.decoded("reserved", Reserved)
        for node in [survey.keys.last_part(entry.key)]
        for instance in sorted(book.instances)
        if (node, instance) not in taken
    ]
    return [*reserved, *_nominations(survey)]


def _nominations(survey: Survey) -> Iterator[Finding]:
    """Room that is kept for an owner who is gone: nobody of lower priority gets it."""
    for entry, book in survey.decoded("reserved", Reserved):
        node = survey.keys.last_part(entry.key)
        for instance, nomination in sorted(book.nominations.items()):
            if survey.owned(nomination.owner):
                continue
            absent = survey.owner_keys(nomination.owner)
            yield Finding(
                "stale-nomination",
                f"{survey.short(entry.key)}/{instance}",
                f"its owner {nomination.owner} waits for room there and does not exist",
                f"farmctl doctor --fix {survey.short(entry.key)}/{instance} withdraws it",
                Removal(
                    "reserved", node, (), release=Release(node, instance, entry, absent, nomination=True)
                ),
            )


def needed(survey: Survey) -> set[Place]:
    """Places of pods, and those that a move has reserved."""
    taken = {survey.keys.pod_parts(entry.key)[1:] for entry in survey.well_formed("pods")}
    return taken | set(_moving(survey))


def held(survey: Survey) -> dict[Place, Release]:
    """What every place has reserved."""
    return {
        (node, instance): release_of(survey.keys, entry, node, instance)
        for entry, book in survey.decoded("reserved", Reserved)
        for node in [survey.keys.last_part(entry.key)]
        for instance in book.instances
    }


def release_of(keys: Keys, entry: Entry, node: str, instance: str) -> Release:
    """Giving back what one place has reserved, as long as nobody is to run there."""
    return Release(node, instance, entry, (keys.intent(node, instance),))


def _moving(survey: Survey) -> Iterator[Place]:
    for _, work in survey.decoded("work", Work):
        if work.transfer is not None:
            yield work.transfer.new


def mutations(cluster: Operation, action: str, releases: Iterable[Release]) -> list[Mutation]:
    """One mutation for each node, because its record changes once a transaction (R17)."""
    nodes: dict[str, dict[tuple[bool, str], Release]] = {}
    for release in releases:
        nodes.setdefault(release.node, {})[release.nomination, release.instance] = release
    return [_mutation(cluster, action, node, here) for node, here in sorted(nodes.items())]


def _mutation(
    cluster: Operation, action: str, node: str, here: Mapping[tuple[bool, str], Release]
) -> Mutation:
    entry = next(iter(here.values())).entry
    book = codec.decode(Reserved, entry.value, entry.key)
    record = _without(book, here.keys())
    change = Change(
        "reserved",
        node,
        node,
        action,
        before={"reservations": len(book.instances), **_counted(book, book)},
        after={"reservations": len(record.instances), **_counted(record, book)},
        details=tuple(_line(release) for _, release in sorted(here.items())),
        destructive=True,
    )
    absent = dict.fromkeys(key for _, release in sorted(here.items()) for key in release.absent)
    checks = [operations.check_not_exists(key) for key in absent]
    return Mutation(change, (cluster, *checks, _write(entry, record)))


def given_back(releases: Sequence[Release]) -> tuple[Operation, list[str]]:
    """The write that gives back places of one node together with what was left there, and what it does."""
    entry = releases[0].entry
    book = codec.decode(Reserved, entry.value, entry.key)
    record = _without(book, {(release.nomination, release.instance) for release in releases})
    return _write(entry, record), [_line(release) for release in releases]


def _without(book: Reserved, gone: Collection[tuple[bool, str]]) -> Reserved:
    left = {name: amounts for name, amounts in book.instances.items() if (False, name) not in gone}
    return msgspec.structs.replace(
        book,
        instances=left,
        priorities={name: rank for name, rank in book.priorities.items() if name in left},
        nominations={name: one for name, one in book.nominations.items() if (True, name) not in gone},
        generation=book.generation + 1,
    )


def _write(entry: Entry, record: Reserved) -> Operation:
    return operations.cas(entry.key, codec.rewrite(record, entry.value), entry.modify_index)


def _line(release: Release) -> str:
    what = "withdraws the nomination" if release.nomination else "gives back the room"
    return f"{what} of {release.node}/{release.instance}"


def _counted(book: Reserved, before: Reserved) -> dict[str, int | str | bool]:
    return {"nominations": len(book.nominations)} if before.nominations else {}
