"""Finds room on nodes that is reserved for no pod and no move.

Such room keeps pods away for ever, because only the owner of the place gives it back (W16: p2 leaked
allocations). A place that a move has reserved is in use, although no pod is there yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from farmd.commands.mutation import Change, Mutation
from farmd.doctor.model import Finding, Release, Removal
from farmd.doctor.survey import Survey
from store import codec, operations
from store.entry import Entry
from store.keys import Keys
from store.nodes import Reserved
from store.operations import Operation
from store.pods import Place
from store.work import Work


def check(survey: Survey) -> list[Finding]:
    """The findings; none while a tree that matters is in doubt."""
    if not survey.proven("pods", "intent", "work"):
        return []
    taken = needed(survey)
    taken |= {survey.keys.intent_parts(entry.key) for entry in survey.well_formed("intent")}
    return [
        Finding(
            "stale-reservation",
            f"{survey.short(entry.key)}/{instance}",
            "its node has a reservation for it, but there is no such pod and none is being placed",
            f"farmctl doctor --fix {survey.short(entry.key)}/{instance} frees the reservation",
            Removal("reserved", node, (), release=release_of(survey.keys, entry, node, instance)),
        )
        for entry, book in survey.decoded("reserved", Reserved)
        for node in [survey.keys.last_part(entry.key)]
        for instance in sorted(book.instances)
        if (node, instance) not in taken
    ]


def needed(survey: Survey) -> set[Place]:
    """The places of pods, and those that a move has reserved."""
    taken = {survey.keys.pod_parts(entry.key)[1:] for entry in survey.well_formed("pods")}
    return taken | set(_moving(survey))


def held(survey: Survey) -> dict[Place, Release]:
    """The reserved room of every place."""
    return {
        (node, instance): release_of(survey.keys, entry, node, instance)
        for entry, book in survey.decoded("reserved", Reserved)
        for node in [survey.keys.last_part(entry.key)]
        for instance in book.instances
    }


def release_of(keys: Keys, entry: Entry, node: str, instance: str) -> Release:
    """The release of one place's room, if no intent is there."""
    return Release(node, instance, entry, (keys.intent(node, instance),))


def _moving(survey: Survey) -> Iterator[Place]:
    for _, work in survey.decoded("work", Work):
        if work.transfer is not None:
            yield work.transfer.new


def mutations(cluster: Operation, action: str, releases: Iterable[Release]) -> list[Mutation]:
    """One mutation for each node, because its record changes once a transaction (R17)."""
    nodes: dict[str, dict[str, Release]] = {}
    for release in releases:
        nodes.setdefault(release.node, {})[release.instance] = release
    return [_mutation(cluster, action, node, here) for node, here in sorted(nodes.items())]


def _mutation(cluster: Operation, action: str, node: str, here: Mapping[str, Release]) -> Mutation:
    entry = next(iter(here.values())).entry
    book = codec.decode(Reserved, entry.value, entry.key)
    record = book.without(here.keys())
    change = Change(
        "reserved",
        node,
        node,
        action,
        before={"reservations": len(book.instances)},
        after={"reservations": len(record.instances)},
        details=tuple(_line(release) for _, release in sorted(here.items())),
        destructive=True,
    )
    absent = dict.fromkeys(key for _, release in sorted(here.items()) for key in release.absent)
    checks = [operations.check_not_exists(key) for key in absent]
    return Mutation(change, (cluster, *checks, _write(entry, record)))


def given_back(releases: Sequence[Release]) -> tuple[Operation, list[str]]:
    """The write that gives back places of one node in the same transaction as removals, and its
    description.
    """
    entry = releases[0].entry
    book = codec.decode(Reserved, entry.value, entry.key)
    record = book.without([release.instance for release in releases])
    return _write(entry, record), [_line(release) for release in releases]


def _write(entry: Entry, record: Reserved) -> Operation:
    return operations.cas(entry.key, codec.rewrite(record, entry.value), entry.modify_index)


def _line(release: Release) -> str:
    return f"frees the reservation of {release.node}/{release.instance}"
