"""Turns a plan into changes of pods, reservations, and notes on a move."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import msgspec

from farmd.farm.writer import Write
from farmd.pods.changes import (
    NodeChanges,
    Note,
    PodChange,
    completion,
    grouped,
    planned,
    removal,
    reservations,
    wanted,
)
from farmd.replication import healing
from farmd.replication.facts import Facts, MoveStep, Plan
from farmd.work.context import Context
from farmd.work.owned import Units
from scheduler.ledger import change_reservations
from scheduler.model import Assignment, FleetView, PlacementRequest
from store import codec, operations
from store.locks import RCNodeTransferLocker
from store.manifests import asked
from store.operations import Operation
from store.pods import Pod
from store.rcs import KIND
from store.work import Transfer, Work

CHANGES_A_NODE = 12


async def units(reading: Facts, plan: Plan, request: PlacementRequest, context: Context) -> Units:
    """The changes that must happen together, in order, and the checks besides the record."""
    view = reading.view if reading.view is not None else context.fleet.view()
    if plan.step is not None:
        return [await _step(reading, plan.step, request, view, context)], _guards(reading, plan, context)
    rc, pods = reading.snapshot.rc, reading.snapshot.pods
    new = Pod(manifest=rc.manifest, labels=dict(request.labels), at=context.clock.now())
    intent = wanted(rc)
    changes: list[tuple[PodChange, ...]] = [
        (removal(place, pods[place]), PodChange("place", goal.node, goal.instance, new, intent))
        for place, goal in plan.moves
    ]
    changes += [(completion(place, pods[place]),) for place in plan.completions]
    changes += [(change,) for change in planned(rc, plan, pods, new, keep_age=True)]
    if rc.replicas_per_node > 1:
        changes = _bounded(changes)
    flat = list(chain.from_iterable(changes))
    going = [Assignment(change.node, change.instance) for change in flat if change.action == "remove"]
    if going:
        await context.scheduler.deallocate_nodes(request, going, view)
    return grouped(changes, reservations(request, flat, view)), _guards(reading, plan, context)


def _bounded(units: list[tuple[PodChange, ...]]) -> list[tuple[PodChange, ...]]:
    """Limit the changes of one node, because they share a transaction if its reservations change (R25).

    The rest is planned again after these are committed.
    """
    seen = Counter[str]()
    chosen = []
    for unit in units:
        if all(seen[change.node] < CHANGES_A_NODE for change in unit):
            for change in unit:
                seen[change.node] += 1
            chosen.append(unit)
    return chosen


def _guards(reading: Facts, plan: Plan, context: Context) -> list[Operation]:
    """The checks besides the record. What manages an RC may hold its mutation lock."""
    guards = _verdicts(reading, plan, context)
    if plan.step is None:
        return guards
    guards += _unclaimed(reading, plan.step, context)
    rc = reading.snapshot.rc
    if not rc.taken:
        guards.append(RCNodeTransferLocker(context.client, context.keys).unlocked(rc.id))
    return guards


def _verdicts(reading: Facts, plan: Plan, context: Context) -> list[Operation]:
    """Checks that the nodes of pods that are given up are still given up at the commit (R21)."""
    leaving = [place for place, _ in plan.moves]
    if plan.step is not None and plan.step.action == "finish":
        leaving.append(plan.step.old)
    return context.placement.verdicts(leaving, reading.snapshot.pods)


# -- moves -------------------------------------------------------------------------------------
async def _step(
    reading: Facts, step: MoveStep, request: PlacementRequest, view: FleetView, context: Context
) -> NodeChanges:
    """One step of a move: its changes, and the note on it."""
    coming: list[Assignment] = []
    going: list[Assignment] = []
    changes: list[PodChange] = []
    new, pods = Assignment(*step.new), reading.snapshot.pods
    if step.action in ("start", "place"):
        coming = [new]
        if step.action == "place":
            changes = [_arrival(reading, step, request, context)]
    elif step.action == "finish":
        going = [Assignment(*step.old)]
        changes = [removal(step.old, pods[step.old])] if step.old in pods else []
    else:
        going = [] if await _theirs(reading, step, context) else [new]
        changes = [removal(step.new, pods[step.new])] if step.new in pods else []
    if going:
        await context.scheduler.deallocate_nodes(request, going, view)
    arriving = [place for place in coming if place.node in view]
    changed = change_reservations(view, add=arriving, request=request, remove=going)
    return NodeChanges(tuple(changes), changed, _note(reading, step, context))


def _unclaimed(reading: Facts, step: MoveStep, context: Context) -> list[Operation]:
    """Checks that no other owner has the place, or the room, that a move reserves or gives up (R17).

    Reservations of other owners are seen at once, their pods and intents a moment later. A pod that comes to
    reserved room changes no reservation, so the reservation is compared by itself.
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


async def _theirs(reading: Facts, step: MoveStep, context: Context) -> bool:
    """Whether another owner has the reserved room by now; a pod that asks for no resources left it to the
    move.
    """
    holder = reading.snapshot.taken
    entry = await context.client.read(context.keys.pod(holder, *step.new)) if holder else None
    if entry is None:
        return False
    pod = codec.decode(Pod, entry.value, entry.key)
    return bool(asked(await context.manifests.get(pod.manifest)))


def _arrival(reading: Facts, step: MoveStep, request: PlacementRequest, context: Context) -> PodChange:
    rc, standing = reading.snapshot.rc, context.fleet.intent(step.new)
    pod = Pod(manifest=rc.manifest, labels=dict(request.labels), at=context.clock.now())
    ours = standing if standing is not None and standing.record.owner == rc.id else None
    return PodChange("place", *step.new, pod, wanted(rc, ours), None, ours)


def _note(reading: Facts, step: MoveStep, context: Context) -> Note:
    """The new note on the move, and its audit fields."""
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
            wait = healing.backoff(failures) * context.rng.uniform(0.8, 1.2)
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
    key, noted = context.keys.work(KIND, reading.snapshot.rc.id), record if record != Work() else None
    state = Write.over(key, noted, reading.work, context.caches.work)
    fields = {"transfer": move.id, "from": "/".join(step.old), "to": "/".join(step.new)}
    return Note((state,), f"transfer.{step.action}", step.reason or step.cause, fields)


def _begun(reading: Facts, step: MoveStep, context: Context) -> Transfer:
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
