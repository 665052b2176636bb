"""From a plan to the operations of one transaction: moves of pods, turns of the phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from farmd.commands.mutation import Call
from farmd.farm.writer import Write
from farmd.pods.changes import NodeChanges, Note, PodChange, removal, repair, reservations, wanted
from farmd.rollout.facts import Action, Facts, Moves, Plan, Turn, of_rollout
from farmd.rollout.noun import ROLLOUT, controller
from farmd.work.context import Context
from farmd.work.hands import freed, passed
from scheduler.model import PlacementRequest
from store import codec, manifests, operations
from store.entry import Stored
from store.errors import InputInvalid
from store.families import RCS
from store.keys import Keys, valid_name
from store.locks import Claim, Holder
from store.manifests import Manifest
from store.operations import Operation
from store.pods import Pod
from store.policies import Policy
from store.ports import KeyReader
from store.rcs import ReplicationController, Reverted
from store.rollouts import KIND, Ended, Ending, History, Rollout
from store.services import NOUN, Service, ServiceStore, naming, reference
from store.work import Work

# The services of a rollout: whose pods routers find while it lasts, and after it.
#
# Old and new serve side by side from its beginning to its end; in a blue-green rollout the new version
# serves once the old one does not, by one write. What must never break: a service always names an owner
# that serves, and each change of ``active`` is in the transaction of the change that it belongs to.

# They share the transaction of a rollout's end with everything that ends. What people made by hand beyond
# that is written before it.
MOST_SERVICES, MOST_CHANGED = 10, 30

Changes = Sequence[tuple[Stored[Service], list[str]]]
"""Services as they were read, and what they are to name."""


# -- pure ---------------------------------------------------------------------------------------
def beside(active: Sequence[str], old: str, new: str) -> list[str]:
    """The owners that serve while both versions do: the new one right after the old one."""
    return _unique(
        each
        for ref in [*active, *(() if old in active else (old,))]
        for each in ((ref, new) if ref == old else (ref,))
    )


def instead(active: Sequence[str], gone: str, stays: str) -> list[str]:
    """One serves in place of another."""
    return _unique([stays if ref == gone else ref for ref in active])


def switches(active: Sequence[str], gone: str, stays: str) -> list[str]:
    """One serves in place of another, also where that was not named."""
    return _unique([*instead(active, gone, stays), stays])


def begins(active: Sequence[str], old: str, new: str, policy: Policy) -> list[str]:
    """The versions that serve during a rollout; before a switch only the old one.

    Where the version that it goes to serves already, and the other does not, that stays so.
    """
    if new in active and old not in active:
        return list(active)
    switches = policy.strategy == "blue-green"
    return _unique([*active, old]) if switches else beside(active, old, new)


def ends(active: Sequence[str], rollout: Rollout, outcome: Ending, stay: Iterable[str]) -> list[str]:
    """The controllers that serve after the end; ``stay`` are those that exist then."""
    old, new = sides(rollout)
    there = {reference(RCS.name, rc) for rc in stay}
    if outcome == "done" and new not in active:
        active = beside(active, old, new)
    elif outcome == "reverted" and not rollout.started_to:
        active = instead(active, new, old)
    left = [ref for ref in active if ref in there or ref not in (old, new)]
    return left or [ref for ref in (old, new) if ref in there]


def sides(rollout: Rollout) -> tuple[str, str]:
    """Both controllers, as services name them."""
    return reference(RCS.name, rollout.old), reference(RCS.name, rollout.new)


def _unique(refs: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(refs))


# -- at the beginning ---------------------------------------------------------------------------
async def join(
    call: Call, rollout: Rollout, new: ReplicationController, name: str, pod: Manifest | None
) -> tuple[str, tuple[Operation, ...]]:
    """The service that a rollout switches, and the writes that let services name both versions.

    That is the service of this ``name``, which is made where there is none, else the first that names one of
    the controllers; empty: none does. ``pod`` is the new manifest where that may not be stored yet.

    Raises:
        InputInvalid: the new version lacks a port that a service names; or there are too many services.
    """
    store, (old, ref) = ServiceStore(call.client, call.keys), sides(rollout)
    found = naming(await store.list(), old, ref)
    named, index = await store.named(name) if name else (None, 0)
    found = [*([named] if named is not None else []), *(each for each in found if each.record.name != name)]
    if not found and not name:
        return "", ()
    if len(found) > MOST_SERVICES:
        raise InputInvalid(
            f"rollout.service: {len(found)} services name {rollout.name}, expected at most {MOST_SERVICES}",
            field="service",
        )
    manifest = pod or await manifests.read(call.client, call.keys, new.manifest)
    for each in found:
        _check_port(each.record, manifest)
    changed = [store.activate(each, begins(each.record.active, old, ref, rollout.policy)) for each in found]
    if not name or named is not None:
        return found[0].record.id, tuple(changed)
    made = Service(
        id=call.ids.new(),
        name=valid_name(name, "service"),
        port=_only_port(name, manifest),
        active=begins((), old, ref, rollout.policy),
        created=call.clock.now(),
    )
    return made.id, (*changed, *store.create(made, name_index=index))


def _check_port(service: Service, manifest: Manifest) -> None:
    if service.port not in manifest.ports:
        found = ", ".join(sorted(manifest.ports)) or "none"
        text = f"pod.ports: found {found}, expected {service.port!r} too: {NOUN} {service.name} names it"
        raise InputInvalid(text, field="pod.ports")


def _only_port(name: str, manifest: Manifest) -> str:
    if len(manifest.ports) != 1:
        found = ", ".join(sorted(manifest.ports)) or "none"
        raise InputInvalid(
            f"rollout.service: found the ports {found}, expected one, to make {NOUN} {name} of it",
            field="service",
            hint=f"farmctl {NOUN} create {name} --port PORT first",
        )
    return next(iter(manifest.ports))


# -- while it lasts -----------------------------------------------------------------------------
async def to_turn(client: KeyReader, keys: Keys, rollout: Rollout, action: Action, *, back: bool) -> Changes:
    """What a turn changes of services: a switch all, the rollout's own as the last one, and a take those that
    were made since the beginning.

    Raises:
        NotFound, RecordInvalid: the rollout's own service is gone, so nothing can be switched.
    """
    if action not in ("take", "switch"):
        return []
    (old, new), found = sides(rollout), await _found(client, keys, rollout)
    if action == "take":
        wanted = [(each, begins(each.record.active, old, new, rollout.policy)) for each in found]
        return [(each, active) for each, active in wanted if active != each.record.active]
    own = await ServiceStore(client, keys).get(rollout.service)
    gone, stays = (new, old) if back else (old, new)
    switching = [*(each for each in found if each.key != own.key), own]
    return [(each, switches(each.record.active, gone, stays)) for each in switching]


async def to_end(
    client: KeyReader, keys: Keys, rollout: Rollout, outcome: Ending, stay: Iterable[str]
) -> Changes:
    """What the end changes of services; ``stay`` are the controllers that exist then."""
    there, found = list(stay), await _found(client, keys, rollout)
    return [(each, ends(each.record.active, rollout, outcome, there)) for each in found]


async def _found(client: KeyReader, keys: Keys, rollout: Rollout) -> list[Stored[Service]]:
    """The services that name one of the controllers, as they are now; what does not decode is left alone."""
    return naming(await ServiceStore(client, keys).list(), *sides(rollout))


def written(client: KeyReader, keys: Keys, changes: Changes) -> list[Operation]:
    """The operations of changes, each at the index at which its service was read."""
    store = ServiceStore(client, keys)
    return [store.activate(stored, active) for stored, active in changes]


# From a plan to the operations of one transaction: a move of pods with both counts, or a turn of the phase.
#
# What must never break: both controllers' counts change with their pods; the controllers are taken and
# given back together with their mutation locks and the phase; the end leaves exactly one owner of the name.

Known = Sequence[Stored[Ended]]


# -- pods ---------------------------------------------------------------------------------------
def unit(reading: Facts, plan: Plan, request: PlacementRequest, context: Context) -> NodeChanges:
    """All moves and repairs of a plan, with both counts: they happen together or not at all."""
    view = reading.view if reading.view is not None else context.fleet.view()
    changes = [*_moved(reading, plan.moves, request, context), *_repaired(reading, plan)]
    changed = reservations(request, changes, view)
    return NodeChanges(tuple(changes), tuple(changed.values()), _counted(reading, plan.moves, context))


def _moved(reading: Facts, moves: Moves, request: PlacementRequest, context: Context) -> list[PodChange]:
    source, target = reading.snapshot.sides
    comes = source if moves.restores else target
    pod = Pod(manifest=comes.rc.manifest, labels=dict(request.labels), at=context.clock.now())
    changes = list[PodChange]()
    for move in moves.moves:
        owner = target if move.way in ("refill", "trim") else source
        state = owner.pods[move.source] if move.source is not None else None
        if move.in_place and move.way == "refill" and state is not None and move.source is not None:
            intent = wanted(target.rc, state.intent)
            changes.append(
                PodChange("replace", *move.source, pod, intent, state.pod, state.intent, target.rc.id)
            )
            continue
        if move.in_place and state is not None and move.source is not None:
            owners = (target.rc.id, source.rc.id)
            intent = wanted(target.rc, state.intent)
            changes.append(PodChange("take", *move.source, pod, intent, state.pod, state.intent, *owners))
            continue
        if state is not None and move.source is not None:
            changes.append(removal(move.source, state, owner.rc.id))
        if move.target is not None:
            place = (move.target.node, move.target.instance)
            changes.append(PodChange("place", *place, pod, wanted(comes.rc), owner=comes.rc.id))
    return changes


def _repaired(reading: Facts, plan: Plan) -> list[PodChange]:
    sides = {side.rc.id: side for side in reading.snapshot.sides}
    return [
        msgspec.structs.replace(repair(sides[owner].rc, place, sides[owner].pods[place]), owner=owner)
        for owner, place in plan.repairs
    ]


def _counted(reading: Facts, moves: Moves, context: Context) -> Note:
    """Writes of both counts after the moves. A count that stays is written, too, so that Consul compares its
    version.
    """
    source, target = reading.snapshot.sides
    after = {
        source.rc.id: source.desired - moves.removed,
        target.rc.id: target.desired + moves.added,
    }
    writes = [rewritten(reading.records[rc], context, replicas_desired=count) for rc, count in after.items()]
    rollout = reading.stored.record
    fields = {"old": str(after[rollout.old]), "new": str(after[rollout.new])}
    action = "rollout.move" if moves.moves else "rollout.repair"
    return Note(tuple(writes), action, "", fields)


def held(reading: Facts, claim: Claim) -> list[Operation]:
    """Checks that this claim holds the mutation locks of both controllers."""
    return [operations.check_session(lock.key, claim.session) for lock in reading.locks.values()]


def rewritten(stored: Stored[ReplicationController], context: Context, **fields: object) -> Write:
    """A controller with other fields, in place of the very version that was read."""
    record = msgspec.structs.replace(stored.record, **fields)
    return Write.over(stored.key, record, stored, context.caches.tree(RCS))


# -- turns --------------------------------------------------------------------------------------
LOCKS: frozenset[Action] = frozenset({"take", "lock", "back"})


def turn(
    reading: Facts, change: Turn, context: Context, claim: Claim, services: Changes = ()
) -> list[Write | Operation]:
    """A transition: the phase, and where it changes hands both controllers and their locks.

    ``services`` are what it changes of those.
    """
    writes: list[Write | Operation] = [*written(context.client, context.keys, services)]
    if change.action != "lock":
        writes.append(_noted(reading, change, context))
    if change.action in LOCKS:
        writes += _locked(reading, context, claim)
    elif not change.takes:
        writes += _freed(reading)
    for stored in reading.records.values():
        if stored.record.taken != change.takes:
            writes.append(rewritten(stored, context, **passed(stored.record, taken=change.takes)))
    return writes


def _noted(reading: Facts, change: Turn, context: Context) -> Write:
    work, rollout = reading.work, reading.stored.record
    record = msgspec.structs.replace(work.record if work is not None else Work(), rollout=change.state)
    return Write.over(context.keys.work(KIND, rollout.id), record, work, context.caches.work)


def _locked(reading: Facts, context: Context, claim: Claim) -> list[Operation]:
    """Take both mutation locks, which are free or an earlier claim's on this rollout (R13)."""
    rollout, found = reading.stored.record, list[Operation]()
    holder = Holder(KIND, rollout.id, f"{claim.nonce}@{context.clock.now():.0f}")
    for rc in (rollout.old, rollout.new):
        key, standing = context.keys.mutation_lock(RCS.name, rc), reading.locks.get(rc)
        if standing is not None and standing.session == claim.session:
            found.append(operations.check_session(key, claim.session))
            continue
        if standing is None:
            found.append(operations.check_not_exists(key))
        else:
            found += [operations.check_index(key, standing.modify_index), operations.delete(key)]
        found.append(operations.lock(key, holder.value(), claim.session))
    return found


def _freed(reading: Facts) -> list[Operation]:
    item = reading.stored.record.id
    found = [lock for lock in reading.locks.values() if of_rollout(lock, item)]
    return [operations.delete_cas(lock.key, lock.modify_index) for lock in found]


# -- the end ------------------------------------------------------------------------------------
def goes(rollout: Rollout, outcome: Ending) -> str:
    """The id of the controller that an end takes away; empty: both stay."""
    if outcome == "done" and not rollout.policy.leave_old:
        return rollout.old
    return rollout.new if outcome == "reverted" and rollout.created_new else ""


def end(
    reading: Facts,
    change: Turn,
    context: Context,
    known: Known,
    services: Changes = (),
    left_open: Mapping[str, str] = MappingProxyType({}),
) -> list[Write | Operation]:
    """End the rollout: delete its record, and give the remaining controllers back to their own workers.

    ``known`` is the history of its controller, ``services`` are what it changes of those, ``left_open``
    the alerts that the controller which stays ends.
    Where the old controller goes, the new one that was made for the rollout takes its name, and is part of
    what the old one was part of.
    """
    rollout, records = reading.stored.record, reading.records
    own = ROLLOUT.records(context.client, context.keys)
    rcs = controller().records(context.client, context.keys)
    writes: list[Write | Operation] = [*own.delete(reading.stored), *_freed(reading)]
    missing = {rollout.old, rollout.new} - records.keys()
    writes += [operations.check_not_exists(context.keys.record(RCS.name, rc)) for rc in sorted(missing)]
    going = goes(rollout, change.outcome)
    if going in records:
        writes += rcs.delete(records[going])
    staying = [rc for rc in records if rc != going]
    for rc in staying:
        stored = records[rc]
        name = stored.record.name
        if going == rollout.old and rollout.created_new:
            writes.append(operations.delete(context.keys.name(RCS.name, name)))
            name = rollout.name
            writes.append(operations.create(context.keys.name(RCS.name, name), codec.encode(rc)))
        fields = freed(stored.record) | {"reverted": _failed(reading, change, stored.record, context)}
        if name != stored.record.name:
            leaves = records[going].record
            fields |= {"part_of": leaves.part_of, "open": leaves.open}
        if rc == staying[0]:
            fields["left_open"] = dict(left_open)
        writes.append(rewritten(stored, context, name=name, **fields))
    writes += written(context.client, context.keys, services)
    ended = _ended(reading, change, old(reading), context)
    return [*writes, *History(context.client, context.keys).add(ended, known)]


def old(reading: Facts) -> ReplicationController:
    """The old controller; if it was deleted by hand, what is still known of it."""
    rollout, records = reading.stored.record, reading.records
    if rollout.old in records:
        return records[rollout.old].record
    known: dict[str, Any] = {
        "id": rollout.old,
        "name": rollout.name,
        "manifest": rollout.from_manifest,
        "replicas_desired": 0,
    }
    if rollout.new in records:
        return msgspec.structs.replace(records[rollout.new].record, **known)
    return ReplicationController(**known, labels=rollout.labels)


def _failed(reading: Facts, change: Turn, rc: ReplicationController, context: Context) -> Reverted | None:
    """Record the failed version on the controller, whose own worker reports it from then on."""
    rollout = reading.stored.record
    if change.outcome == "done":
        return None
    if change.outcome == "aborted" or rollout.wish or rc.id != rollout.old:
        return rc.reverted
    return Reverted(
        manifest=rollout.to_manifest,
        kept=rollout.from_manifest,
        reason=change.reason,
        at=context.clock.now(),
    )


def _ended(reading: Facts, change: Turn, old: ReplicationController, context: Context) -> Ended:
    rollout = reading.stored.record
    return Ended(
        id=rollout.id,
        name=rollout.name,
        outcome=change.outcome,
        from_manifest=rollout.from_manifest,
        to_manifest=rollout.to_manifest,
        old=old,
        replicas=rollout.replicas,
        new=rollout.new,
        started_from=rollout.started_from,
        reason=change.reason,
        by=rollout.by,
        began=rollout.at,
        ended=context.clock.now(),
    )
