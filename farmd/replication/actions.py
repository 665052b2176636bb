"""From a plan to what its transactions consist of: changes of pods, reservations, and notes on a move.

Reservations of one plan are computed together, from the view that its places were chosen from: a node's
record changes once a transaction, and a view that was overtaken is refused by Consul (R17).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from farmd.farm.writer import Write
from farmd.pods.changes import Change, NodeChanges, Note, grouped
from farmd.pods.state import Place
from farmd.replication import transfer
from farmd.replication.model import Plan, Step
from farmd.replication.reader import Reading
from farmd.work.context import Context
from scheduler.model import Assignment, FleetView, Request
from scheduler.reservations import Reservation, change_reservations
from store import codec, operations
from store.intent import Intent
from store.manifests import asked
from store.operations import Operation
from store.pods import Pod
from store.work import Transfer, Work

CHANGES_A_NODE = 12


async def units(reading: Reading, plan: Plan, request: Request, context: Context) -> Iterable[NodeChanges]:
    """What must happen together, one after the other."""
    view = reading.view if reading.view is not None else context.fleet.view()
    if plan.step is not None:
        return [await _step(reading, plan.step, request, view, context)]
    changes = list(_changes(reading, plan, request, context.clock.now()))
    if reading.snapshot.rc.replicas_per_node > 1:
        changes = _bounded(changes)
    return grouped(changes, await _reservations(request, changes, view, context))


def _changes(reading: Reading, plan: Plan, request: Request, now: float) -> Iterable[tuple[Change, ...]]:
    snapshot = reading.snapshot
    rc, labels = snapshot.rc, dict(request.labels)
    new = Pod(manifest=rc.manifest, labels=labels, at=now)
    intent = Intent(manifest=rc.manifest, owner=rc.id)
    for place in plan.removals:
        yield (_removal(reading, place),)
    for place, goal in plan.moves:
        yield _removal(reading, place), Change("place", goal.node, goal.instance, new, intent)
    for goal in plan.additions:
        yield (Change("place", goal.node, goal.instance, new, intent),)
    for place in plan.repairs:
        state = snapshot.pods[place]
        repaired = Intent(manifest=state.pod.record.manifest, owner=rc.id)
        yield (Change("repair", *place, state.pod.record, repaired, state.pod, state.intent),)
    for place in plan.replacements:
        if place not in plan.repairs:
            state = snapshot.pods[place]
            pod = Pod(manifest=rc.manifest, labels=labels, at=state.pod.record.at)
            yield (Change("replace", *place, pod, intent, state.pod, state.intent),)


def _bounded(units: list[tuple[Change, ...]]) -> list[tuple[Change, ...]]:
    """At most so many changes of one node: they share a transaction if its reservations change (R25).

    The rest is planned again once these are committed.
    """
    seen = Counter[str]()
    chosen = []
    for unit in units:
        if all(seen[change.node] < CHANGES_A_NODE for change in unit):
            seen.update(change.node for change in unit)
            chosen.append(unit)
    return chosen


def _removal(reading: Reading, place: Place) -> Change:
    state = reading.snapshot.pods[place]
    return Change("remove", *place, None, None, state.pod, state.intent)


async def _reservations(
    request: Request, units: Iterable[tuple[Change, ...]], view: FleetView, context: Context
) -> dict[str, Reservation]:
    """What a plan changes in its nodes' reservations, by node."""
    changes = [change for unit in units for change in unit]
    going = [Assignment(c.node, c.instance) for c in changes if c.action == "remove"]
    coming = [
        Assignment(c.node, c.instance) for c in changes if c.action in ("place", "replace") and c.node in view
    ]
    if going:
        await context.scheduler.deallocate_nodes(request, going, view)
    changed = change_reservations(view, add=coming, request=request, remove=going)
    return {change.node: change for change in changed}


def verdicts(reading: Reading, plan: Plan, context: Context) -> list[Operation]:
    """Checks that the nodes of pods that are given up are still given up at that very moment (R21)."""
    leaving = [place for place, _ in plan.moves]
    if plan.step is not None and plan.step.action == "finish":
        leaving.append(plan.step.old)
    pods = reading.snapshot.pods
    nodes = {place[0] for place in leaving if place in pods and pods[place].lost is not None}
    keys = [context.keys.work("nodes", node) for node in sorted(nodes)]
    known = [(key, context.caches.work.get(key)) for key in keys]
    return [operations.check_index(key, stored.index if stored else 0) for key, stored in known]


# -- moves -------------------------------------------------------------------------------------
async def _step(
    reading: Reading, step: Step, request: Request, view: FleetView, context: Context
) -> NodeChanges:
    """One step of a move, with what it changes and what is remembered of it."""
    coming: list[Assignment] = []
    going: list[Assignment] = []
    changes: list[Change] = []
    new = Assignment(*step.new)
    if step.action in ("start", "place"):
        coming = [new]
        if step.action == "place":
            changes = [_arrival(reading, step, request, context)]
    elif step.action == "finish":
        going = [Assignment(*step.old)]
        changes = [_removal(reading, step.old)] if step.old in reading.snapshot.pods else []
    else:
        going = [] if await _theirs(reading, step, context) else [new]
        changes = [_removal(reading, step.new)] if step.new in reading.snapshot.pods else []
    if going:
        await context.scheduler.deallocate_nodes(request, going, view)
    reservations = change_reservations(
        view,
        add=[place for place in coming if place.node in view],
        request=request,
        remove=going,
    )
    return NodeChanges(tuple(changes), reservations, _note(reading, step, context))


def unclaimed(reading: Reading, step: Step, context: Context) -> list[Operation]:
    """That a place which a move reserves or gives up is nobody else's, and so is the room there (R17).

    Others' reservations are seen at once, their pods and intents a moment later. A pod that comes to room
    that it has already changes none of it, so that is compared by itself.
    """
    if step.action == "place":
        book = context.caches.reserved.get(context.keys.reserved(step.new[0]))
        if book is None or step.new[1] not in book.record.instances:
            return []
        return [operations.check_index(book.key, book.index)]
    bare = step.action in ("start", "rollback", "cancel") and step.new not in reading.snapshot.pods
    if not bare or reading.snapshot.taken:
        return []
    key, standing = context.keys.intent(*step.new), context.fleet.intent(step.new)
    if standing is None:
        return [operations.check_not_exists(key)]
    return [operations.check_index(key, standing.index)]


async def _theirs(reading: Reading, step: Step, context: Context) -> bool:
    """Whether the room that the move reserved is somebody else's by now; who asks for none left it ours."""
    holder = reading.snapshot.taken
    entry = await context.client.read(context.keys.pod(holder, *step.new)) if holder else None
    if entry is None:
        return False
    pod = codec.decode(Pod, entry.value, entry.key)
    return bool(asked(await context.manifests.get(pod.manifest)))


def _arrival(reading: Reading, step: Step, request: Request, context: Context) -> Change:
    rc, standing = reading.snapshot.rc, context.fleet.intent(step.new)
    pod = Pod(manifest=rc.manifest, labels=dict(request.labels), at=context.clock.now())
    intent = Intent(manifest=rc.manifest, owner=rc.id)
    ours = standing if standing is not None and standing.record.owner == rc.id else None
    return Change("place", *step.new, pod, intent, None, ours)


def _note(reading: Reading, step: Step, context: Context) -> Note:
    """The move as it is remembered from now on, and in the audit."""
    known = reading.work.record if reading.work is not None else Work()
    move, failures, not_before, failed = known.transfer, 0, 0.0, ""
    if step.action == "start":
        move = _begun(reading, step, context)
        failures = known.transfer_failures
    elif move is None:
        raise RuntimeError(f"{step.action} without a move under way")
    else:
        failures = known.transfer_failures + 1 if step.action == "rollback" else 0
        if step.action == "rollback":
            wait = transfer.backoff(failures) * context.rng.uniform(0.8, 1.2)
            not_before, failed = reading.snapshot.now + wait, step.cause
        elif step.action == "place":
            failures = known.transfer_failures
    after = msgspec.structs.replace(move, phase="placed") if step.action == "place" else move
    record = msgspec.structs.replace(
        known,
        transfer=after if step.action in ("start", "place") else None,
        transfer_failures=failures,
        transfer_not_before=not_before,
        transfer_failed=failed,
    )
    index, raw = (reading.work.index, reading.work.raw) if reading.work is not None else (0, b"")
    key = context.keys.work("rcs", reading.snapshot.rc.id)
    state = Write(key, record if record != Work() else None, index, raw, tree=context.caches.work)
    fields = {"transfer": move.id, "from": "/".join(step.old), "to": "/".join(step.new)}
    return Note(state, f"transfer.{step.action}", step.reason or step.cause, fields)


def _begun(reading: Reading, step: Step, context: Context) -> Transfer:
    now, rc = reading.snapshot.now, reading.snapshot.rc
    return Transfer(
        id=context.ids.new(),
        old_node=step.old[0],
        old_instance=step.old[1],
        new_node=step.new[0],
        new_instance=step.new[1],
        cause=step.cause,
        since=now,
        deadline=now + rc.transfer_timeout,
    )
