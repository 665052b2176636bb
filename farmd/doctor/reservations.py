"""Room on nodes that is reserved for nobody: what an owner left behind that is gone, or a move of its.

It keeps pods away for ever, because only whoever has the place gives its room back (W16: p2 leaked
allocations). A place that a move has reserved is somebody's, although no pod stands there yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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
    taken = {survey.keys.pod_parts(entry.key)[1:] for entry in survey.well_formed("pods")}
    taken |= {survey.keys.intent_parts(entry.key) for entry in survey.well_formed("intent")}
    taken |= set(_moving(survey))
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
    left = {name: amounts for name, amounts in book.instances.items() if (False, name) not in here}
    record = msgspec.structs.replace(
        book,
        instances=left,
        priorities={name: rank for name, rank in book.priorities.items() if name in left},
        nominations={name: one for name, one in book.nominations.items() if (True, name) not in here},
        generation=book.generation + 1,
    )
    change = Change(
        "reserved",
        node,
        node,
        action,
        before={"reservations": len(book.instances), **_counted(book, book)},
        after={"reservations": len(left), **_counted(record, book)},
        details=tuple(
            f"{'withdraws the nomination' if nomination else 'gives back the room'} of {node}/{name}"
            for nomination, name in sorted(here)
        ),
        destructive=True,
    )
    absent = dict.fromkeys(key for _, release in sorted(here.items()) for key in release.absent)
    checks = [operations.check_not_exists(key) for key in absent]
    value = codec.rewrite(record, entry.value)
    return Mutation(change, (cluster, *checks, operations.cas(entry.key, value, entry.modify_index)))


def _counted(book: Reserved, before: Reserved) -> dict[str, int | str | bool]:
    return {"nominations": len(book.nominations)} if before.nominations else {}
