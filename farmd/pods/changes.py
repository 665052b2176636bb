"""Changes of pods as values, and the operations of a worker's transactions.

A pod's ``pods`` key and its intent change together or not at all, each compared with the version that the
change was planned from. Creating an intent is always compare-and-set 0, so nothing that belongs to another
owner is overwritten or removed (W10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from farmd.farm.writer import Write, deletion
from farmd.pods.state import PodState
from scheduler.ledger import Reservation, change_reservations, confirmed
from scheduler.model import Assignment, FleetView, PlacementRequest
from store import codec, operations
from store.entry import Stored
from store.keys import Keys
from store.named import Owner
from store.operations import Operation
from store.pods import Place, Pod
from store.reality import Intent
from store.transaction import Group


class PodChange(msgspec.Struct, frozen=True, gc=False):
    """The change of one pod. ``pod`` and ``intent`` are the new records; None deletes them.

    ``standing`` and ``standing_intent`` are the versions that the change was planned from. ``owner`` owns the
    pod; empty: the item that changes it. A pod that is taken over belonged to ``previous``. ``end`` writes
    the pod alone, ``repair`` and ``release`` the intent alone. ``complete`` keeps a pod that ended well as
    done, and takes its intent away.
    """

    action: Literal["place", "remove", "replace", "restart", "repair", "take", "end", "complete", "release"]
    node: str
    instance: str
    pod: Pod | None
    intent: Intent | None
    standing: Stored[Pod] | None = None
    standing_intent: Stored[Intent] | None = None
    owner: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """The changes of a plan to one owner's pods.

    ``repairs`` are pods whose intent was lost or altered, ``replacements`` outdated pods that take the
    owner's manifest and its counter of restarts in place; a pod in both is replaced. ``restarts`` are pods
    whose check fails, and which their owner can help in no other way.
    """

    additions: tuple[Assignment, ...] = ()
    removals: tuple[Place, ...] = ()
    repairs: tuple[Place, ...] = ()
    replacements: tuple[Place, ...] = ()
    restarts: tuple[Place, ...] = ()

    @property
    def changes_pods(self) -> bool:
        """Whether the plan changes pods."""
        changes = self.additions or self.removals or self.repairs or self.replacements or self.restarts
        return bool(changes)

    @property
    def arriving(self) -> tuple[Place, ...]:
        """The places of new pods."""
        return tuple((goal.node, goal.instance) for goal in self.additions)

    def counts(self) -> dict[str, int | str]:
        """The numbers of changes, for the log."""
        return {
            "placed": len(self.additions),
            "removed": len(self.removals),
            "repaired": len(self.repairs),
            "replaced": len(self.replacements),
            "restarted": len(self.restarts),
        }


@dataclass(frozen=True, slots=True)
class Note:
    """Writes of a worker besides its pods, in the same transaction, and the words for the audit."""

    writes: tuple[Write, ...]
    action: str
    reason: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


class NodeChanges(msgspec.Struct, frozen=True, gc=False):
    """Changes that must happen together: of one pod, of a move, or of a node whose reservations change."""

    changes: tuple[PodChange, ...]
    reservations: tuple[Reservation, ...] = ()
    note: Note | None = None


def arriving(units: Iterable[NodeChanges]) -> list[Place]:
    """The places of new pods."""
    changes = (change for unit in units for change in unit.changes)
    return [(change.node, change.instance) for change in changes if change.action == "place"]


def wanted(owner: Owner, standing: Stored[Intent] | None = None) -> Intent:
    """What a node must run for an owner; the counter of restarts never falls (R28)."""
    least = standing.record.restart if standing is not None else 0
    return Intent(owner.manifest, owner.id, max(owner.restart, least))


def planned(
    owner: Owner, plan: PodPlan, pods: Mapping[Place, PodState], new: Pod, *, keep_age: bool = False
) -> Iterator[PodChange]:
    """The changes of a plan. A replaced pod gets the age of ``new``, unless ``keep_age`` is set.

    A pod that its owner restarts always gets it: how long it may stay unhealthy counts from then on.
    """
    intent = wanted(owner)
    for place in plan.removals:
        yield removal(place, pods[place])
    for goal in plan.additions:
        yield PodChange("place", goal.node, goal.instance, new, intent)
    for place in plan.repairs:
        if place not in plan.replacements:
            yield repair(owner, place, pods[place])
    for place in plan.replacements:
        state = pods[place]
        pod = msgspec.structs.replace(new, at=state.pod.record.at) if keep_age else new
        action: Literal["replace", "restart"] = "replace" if state.outdated(owner.manifest) else "restart"
        own = wanted(owner, state.intent)
        yield PodChange(action, *place, pod, intent if own == intent else own, state.pod, state.intent)
    for place in plan.restarts:
        state = pods[place]
        again = wanted(owner, state.intent)
        again = msgspec.structs.replace(again, restart=again.restart + 1)
        yield PodChange("restart", *place, new, again, state.pod, state.intent)


def repair(owner: Owner, place: Place, state: PodState) -> PodChange:
    """The pod's intent as it was before it was lost or altered.

    A repair restarts nothing: that has its turn later, at the owner's pace.
    """
    counted = state.intent.record if state.intent is not None else wanted(owner)
    repaired = msgspec.structs.replace(counted, manifest=state.pod.record.manifest, owner=owner.id)
    return PodChange("repair", *place, state.pod.record, repaired, state.pod, state.intent)


def completion(place: Place, state: PodState) -> PodChange:
    """The pod as one that is done for good, wherever its node goes."""
    done = msgspec.structs.replace(state.pod.record, done=True)
    return PodChange("complete", *place, done, None, state.pod, state.intent)


def removal(place: Place, state: PodState, owner: str = "") -> PodChange:
    """The removal of a pod and its intent."""
    return PodChange("remove", *place, None, None, state.pod, state.intent, owner)


def reservations(
    request: PlacementRequest, changes: Sequence[PodChange], view: FleetView
) -> dict[str, Reservation]:
    """The new reservations of each node after all changes of one plan.

    They are computed together from the view that the places were chosen from, because a transaction writes a
    node's record once. Consul refuses a view that is out of date (R17). A pod that comes to room that it has
    reserved already changes none of it. Its node's record is written unchanged all the same, because another
    process may have given the room back since.
    """
    going, coming = [], []
    for change in changes:
        place = Assignment(change.node, change.instance)
        if change.action in ("remove", "end", "complete"):
            going.append(place)
        elif change.action in ("place", "replace", "restart", "take") and change.node in view:
            coming.append(place)
    changed = change_reservations(view, add=coming, request=request, remove=going)
    made = {reservation.node: reservation for reservation in changed}
    for change in changes:
        held = view[change.node].reserved.instances if change.node in view else {}
        if change.action == "place" and change.instance in held and change.node not in made:
            made[change.node] = confirmed(view[change.node])
    return made


def grouped(
    units: Iterable[Sequence[PodChange]], reservations: Mapping[str, Reservation]
) -> Iterator[NodeChanges]:
    """One group per unit, except that units which change the same node's reservations share one (R17)."""
    if not reservations:
        yield from (NodeChanges(tuple(unit)) for unit in units)
        return
    together: dict[str, list[PodChange]] = {}
    for unit in units:
        if not any(change.node in reservations for change in unit):
            yield NodeChanges(tuple(unit))
            continue
        joined = list(unit)
        for members in _distinct(together.get(change.node) for change in unit):
            joined = members + joined
        together.update({change.node: joined for change in joined if change.node in reservations})
    for members in _distinct(together.values()):
        nodes = sorted({change.node for change in members} & reservations.keys())
        yield NodeChanges(tuple(members), tuple(reservations[node] for node in nodes))


def together(units: Iterable[NodeChanges], note: Note) -> NodeChanges:
    """All changes of some units as one, with a worker's own writes."""
    found = list(units)
    changes = tuple(change for unit in found for change in unit.changes)
    return NodeChanges(changes, tuple(each for unit in found for each in unit.reservations), note)


def _distinct(lists: Iterable[list[PodChange] | None]) -> list[list[PodChange]]:
    return list({id(members): members for members in lists if members is not None}.values())


Encode = Callable[[Any], bytes]


def encoder() -> Encode:
    """Encodes each record once, because the thousands of pods of one plan share a few."""
    known: dict[int, tuple[Any, bytes]] = {}

    def encode(record: Any) -> bytes:
        found = known.get(id(record))
        if found is None:
            found = known[id(record)] = (record, codec.encode(record))
        return found[1]

    return encode


def rewritten(record: Any, standing: Stored[Any] | None) -> bytes:
    """A record that replaces an existing one, with those of its fields that this version does not know.

    Empty if it has none: caches keep the value only of a record with such fields.
    """
    return codec.rewrite(record, standing.raw) if standing is not None and standing.raw else b""


def group(subject: NodeChanges, owner: str, keys: Keys, encode: Encode = codec.encode) -> Group[NodeChanges]:
    """The operations of changes that happen together or not at all."""
    ops = [
        op for change in subject.changes for op in _operations(change, change.owner or owner, keys, encode)
    ]
    ops += [reservation.operation(keys) for reservation in subject.reservations]
    if subject.note is not None:
        ops += [op for write in subject.note.writes for op in write.operations()]
    return Group(tuple(ops), subject)


def _operations(change: PodChange, owner: str, keys: Keys, encode: Encode) -> list[Operation]:
    pod_key = keys.pod(owner, change.node, change.instance)
    ops: list[Operation] = []
    if change.pod is not None:
        index = change.standing.index if change.standing else 0
        if change.action == "take":
            ops += deletion(keys.pod(change.previous, change.node, change.instance), index)
            ops.append(operations.create(pod_key, encode(change.pod)))
        elif change.action in ("repair", "release"):
            ops.append(operations.check_index(pod_key, index))
        else:
            value = rewritten(change.pod, change.standing) or encode(change.pod)
            ops.append(operations.cas(pod_key, value, index))
    elif change.standing is not None:
        ops += deletion(pod_key, change.standing.index)
    if change.action == "end":
        return ops
    return ops + _intent_operations(change, owner, keys.intent(change.node, change.instance), encode)


def _intent_operations(change: PodChange, owner: str, key: str, encode: Encode) -> list[Operation]:
    standing = change.standing_intent
    if change.intent is not None:
        value = rewritten(change.intent, standing) or encode(change.intent)
        return [operations.cas(key, value, standing.index if standing else 0)]
    if standing is None:
        return [operations.check_not_exists(key)]
    if standing.record.owner != owner:
        # Another owner's: only the own pod is removed, and only if that is still so. A manager may change
        # the owner of an intent, which other farms see later.
        return [operations.check_index(key, standing.index)]
    return [operations.delete_cas(key, standing.index)]


def audit_bytes(g: Group[NodeChanges]) -> int:
    """The bytes that a group adds to the audit record, in base64."""
    owners = sum(len(c.owner) + len(c.previous) for c in g.subject.changes)
    return owners * 2 + sum((len(c.node) + len(c.instance) + 4) * 4 // 3 + 1 for c in g.subject.changes)


def came(changes: list[PodChange]) -> list[str]:
    """The pods that exist from now on, as the audit names them."""
    return [_named(change, change.owner) for change in changes if change.action in ("place", "take")]


def went(changes: list[PodChange]) -> list[str]:
    """The pods that exist no more, as the audit names them."""
    gone = [(change, change.owner) for change in changes if change.action == "remove"]
    gone += [(change, change.previous) for change in changes if change.action == "take"]
    return [_named(change, owner) for change, owner in gone]


def relabelled(changes: list[PodChange]) -> list[str]:
    """The pods that stay and were changed, as the audit names them."""
    return [
        _named(change, change.owner)
        for change in changes
        if change.action in ("replace", "restart", "repair", "end", "complete", "release")
    ]


def _named(change: PodChange, owner: str) -> str:
    return f"{owner}/{change.node}/{change.instance}" if owner else f"{change.node}/{change.instance}"
