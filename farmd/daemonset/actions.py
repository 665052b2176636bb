"""From a plan to what its transactions consist of: changes of pods, and of their nodes' reservations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from farmd.daemonset.model import Plan
from farmd.daemonset.reader import Reading
from farmd.pods.changes import Change, NodeChanges, grouped
from scheduler.model import Assignment, Request
from scheduler.reservations import change_reservations
from store.intent import Intent
from store.pods import Pod


def units(reading: Reading, plan: Plan, request: Request, now: float) -> Iterable[NodeChanges]:
    """What must happen together, one after the other."""
    changes = list(_changes(reading, plan, request, now))
    going = [Assignment(c.node, c.instance) for c in changes if c.action == "remove"]
    coming = [
        Assignment(c.node, c.instance)
        for c in changes
        if c.action in ("place", "replace") and c.node in reading.view
    ]
    reservations = change_reservations(reading.view, add=coming, request=request, remove=going)
    return grouped([(change,) for change in changes], {change.node: change for change in reservations})


def _changes(reading: Reading, plan: Plan, request: Request, now: float) -> Iterator[Change]:
    """``at`` of a replaced pod is when it was replaced: the pace is kept by it."""
    daemonset, pods = reading.snapshot.daemonset, reading.snapshot.pods
    new = Pod(manifest=daemonset.manifest, labels=dict(request.labels), at=now)
    intent = Intent(manifest=daemonset.manifest, owner=daemonset.id)

    for place in plan.removals:
        yield Change("remove", *place, None, None, pods[place].pod, pods[place].intent)
    for goal in plan.additions:
        yield Change("place", goal.node, goal.instance, new, intent)
    for place in plan.repairs:
        if place not in plan.replacements:
            state = pods[place]
            own = Intent(manifest=state.pod.record.manifest, owner=daemonset.id)
            yield Change("repair", *place, state.pod.record, own, state.pod, state.intent)
    for place in plan.replacements:
        state = pods[place]
        yield Change("replace", *place, new, intent, state.pod, state.intent)
