"""The commands of nodes, what each will do, and the wait for a drain."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from farmd import kinds, overview
from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Call, Change, Mutation, Scalar, guard, registered
from farmd.commands.outlook import Outlook
from farmd.commands.parts import STATED, said_by
from farmd.commands.waiting import until
from farmd.nodes import facts
from farmd.overview import PodRow
from farmd.runtime.errors import WaitTimeout
from scheduler.decide import allocation
from scheduler.errors import PlacementInvalid
from scheduler.model import FleetView
from scheduler.protocol import Allocation
from store import manifests, registration
from store.errors import Conflict, InputInvalid, NotFound, NotRegistered, RecordInvalid
from store.keys import valid_segment
from store.nodes import LOCAL, Drain, Node, NodeRecords, NodeStore
from store.operations import Operation
from store.pods import Place
from store.selectors import valid_key, valid_node_labels
from store.times import rfc3339
from store.words import amount_text

# What becomes of a node's pods if it is drained, for ``--dry-run``: where each one goes, or why nowhere.


async def outlook(call: Call, node: str, fleet: Fleet) -> Outlook:
    """The outlook for a node that is drained."""
    view = fleet.view()
    if node in view:
        view = {**view, node: msgspec.structs.replace(view[node], drain="pods", cordoned=True)}
    by_owner: dict[str, list[PodRow]] = defaultdict(list)
    for row in fleet.pods:
        if row.node == node:
            by_owner[row.owner].append(row)
    removes: list[Place] = []
    moves: list[tuple[Place, Place]] = []
    unplaced: list[str] = []
    for owner_id, pods in sorted(by_owner.items()):
        owner = await facts.find_owner(call.client, call.keys, owner_id)
        places = [(row.node, row.instance) for row in pods]
        if owner.stays:
            unplaced.append(f"{owner.title}: {owner.stays}")
        elif not owner.moves:
            removes += places
        else:
            found = await _places(call, view, owner.kind, owner_id, len(places))
            moves += zip(places, ((goal.node, goal.instance) for goal in found.assignments), strict=False)
            unplaced += [f"{owner.title}: {found.why}"] if found.why else []
    return Outlook(removes=tuple(removes), moves=tuple(moves), unplaced=tuple(unplaced))


async def _places(call: Call, view: FleetView, family: str, owner_id: str, count: int) -> Allocation:
    """Places for pods of an owner, which may keep the others that it has."""
    noun = kinds.asked(family)
    assert noun.pods is not None
    try:
        record = (await noun.records(call.client, call.keys).find(owner_id)).record
        manifest = await manifests.read(call.client, call.keys, record.manifest)
        return allocation(noun.pods.request(record, manifest), count, view)
    except (NotFound, RecordInvalid, PlacementInvalid) as error:
        return Allocation((), missing=count, why=error.message)


KIND = "nodes"
LONGEST_DRAIN_SECONDS = 30 * 86400.0


async def label(call: Call, name: str, labels: Mapping[str, str], remove: Sequence[str] = ()) -> Mutation:
    """Set and remove labels of a node; they win over the agent's facts.

    Raises:
        InputInvalid: a bad key or value, or a key that is both set and removed.
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    valid_node_labels(labels, "labels")
    for key in remove:
        valid_key(key, "labels")
        if key in labels:
            raise InputInvalid(
                f"labels: found {key!r} both set and removed, expected one of both", field="labels"
            )
    view = await view_of(call, name)
    kept = {key: value for key, value in view.record.labels.items() if key not in remove}
    return await edit(
        call, view, msgspec.structs.replace(view.record, labels={**kept, **labels}), "node.label"
    )


async def register(call: Call, name: str) -> Mutation:
    """Register a node before its agent starts, for agents whose tokens may not do so themselves (R20).

    From then on an empty answer for the node is true: its agent stops everything else that it runs. So a
    person is asked first if the node was known before.

    Raises:
        InputInvalid: a bad name. NotRegistered: no cluster lives under this prefix.
    """
    keys, cluster = call.keys, await registered(call)
    sentinel = keys.sentinel(keys.intents(valid_segment(name, "node")))
    node, agent = await call.client.read(keys.node(name)), await call.client.read(keys.agent(name))
    writes: list[Operation] = []
    if await call.client.read(sentinel, mode="consistent") is None:
        cluster_id = await registration.cluster_id(call.client, keys)
        writes.append(registration.sentinel(sentinel, cluster_id))
    if node is None and agent is None:  # where an agent is, a farm makes the record
        writes.append(NodeStore(call.client, keys).write(NodeRecords(name, None, None), Node()))
    change = Change(KIND, name, name, "node.register")
    if not writes:
        return Mutation(change)
    there = node is not None or agent is not None
    change = dataclasses.replace(
        change,
        before={"registered": False},
        after={"registered": True},
        details=("what its agent runs without an intent is stopped from then on",) if there else (),
        destructive=there,
    )
    return Mutation(change, (cluster, *writes))


async def cordon(call: Call, name: str) -> Mutation:
    """Keep new pods away from a node; those that run there keep running.

    Raises:
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    view = await view_of(call, name)
    record = msgspec.structs.replace(view.record, cordoned=True, cordon_reason=call.reason)
    if view.record.cordoned and not call.reason:
        record = view.record
    return await edit(call, view, record, "node.cordon")


async def uncordon(call: Call, name: str) -> Mutation:
    """Let pods onto a node again; a drain ends.

    Raises:
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    view = await view_of(call, name)
    record = msgspec.structs.replace(view.record, cordoned=False, cordon_reason="", drain=None)
    return await edit(call, view, record, "node.uncordon")


async def drain(call: Call, name: str, seconds: float) -> Mutation:
    """Move all pods off a node, the system's last; it stays cordoned. ``seconds`` is until the deadline.

    A forced call lets the pods that are left by then go below their owners' health floor.

    Raises:
        InputInvalid: a deadline that is not above 0 and at most 30 days, or force without a reason.
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    if not 0 < seconds <= LONGEST_DRAIN_SECONDS:
        raise InputInvalid(
            f"deadline: found {seconds:.0f} seconds, expected more than 0 and at most 30 days",
            field="deadline",
        )
    view = await view_of(call, name)
    old, now = view.record.drain, call.clock.now()
    under_way = view.record.draining
    new = Drain(
        stage=under_way.stage if under_way is not None else "pods",
        since=under_way.since if under_way is not None else now,
        deadline=now + seconds,
        by=call.actor,
        reason=call.reason,
        force=call.force,
        cordoned=old.cordoned if old is not None else view.record.cordoned,
    )
    record = msgspec.structs.replace(
        view.record, drain=new, cordoned=True, cordon_reason=view.record.cordon_reason or call.reason
    )
    mutation = await edit(call, view, record, "node.drain")
    change = dataclasses.replace(
        mutation.change,
        details=await _moves(call, view.name),
        destructive=mutation.change.destructive or call.force,
    )
    return dataclasses.replace(mutation, change=change, outlook=partial(outlook, call, view.name))


async def undrain(call: Call, name: str) -> Mutation:
    """End a drain; a cordon that was there before it stays.

    Raises:
        NotFound: no such node. Locked: somebody holds its mutation lock.
    """
    view = await view_of(call, name)
    old = view.record.drain
    if old is None:
        return Mutation(Change(KIND, view.name, view.name, "node.undrain"))
    record = msgspec.structs.replace(
        view.record,
        drain=None,
        cordoned=old.cordoned,
        cordon_reason=view.record.cordon_reason if old.cordoned else "",
    )
    return await edit(call, view, record, "node.undrain")


async def _moves(call: Call, node: str) -> tuple[str, ...]:
    """What a drain will move, and what will stay: one line for each owner, system pods last."""
    try:
        left = await facts.read_leftovers(
            call.client, call.keys, node, facts.SystemPods(call.client, call.keys), running=False
        )
    except NotRegistered:
        return ("no agent ever ran there",)
    lines = []
    for system in (False, True):
        pods = [pod for pod in left if pod.system is system]
        for owner in sorted({pod.owner for pod in pods}):
            names = ", ".join(pod.instance for pod in pods if pod.owner == owner)
            lines.append(await _move(call, owner, names, system))
    return tuple(lines) or ("no pods run there",)


async def _move(call: Call, owner_id: str, names: str, system: bool) -> str:
    owner = await facts.find_owner(call.client, call.keys, owner_id)
    if owner.stays:
        return f"stays: {names} ({owner.title}: {owner.stays})"
    verb = "moves" if owner.moves else "goes"
    return f"{verb}{' last, a system pod' if system else ''}: {names} ({owner.title})"


async def view_of(call: Call, name: str) -> NodeRecords:
    """The records of one node.

    Raises:
        InputInvalid: no name of a node. NotFound: no such node.
    """
    return await NodeStore(call.client, call.keys).get(valid_segment(name, "node"))


async def edit(call: Call, view: NodeRecords, record: Node, action: str) -> Mutation:
    """Replace a node's record, if it differs.

    Raises:
        Conflict: the file of an app says what changes. Locked: somebody holds its mutation lock.
    """
    before, after = difference(view.record, record)
    await _refuse_stated(call, view, {*before, *after})
    if not before and not after:
        return Mutation(Change(KIND, view.name, view.name, action))
    held = await guard(call, KIND, view.name, f"node {view.name!r}")
    change = Change(
        KIND,
        view.name,
        view.name,
        action,
        before={**before, **held.before},
        after={**after, **held.after},
        destructive=bool(held.before),
    )
    write = NodeStore(call.client, call.keys).write(view, record)
    return Mutation(change, (await registered(call), *held.operations, write))


async def _refuse_stated(call: Call, view: NodeRecords, fields: Collection[str]) -> None:
    """Refuse to change what apps say of a node; an app changes only what it says itself."""
    owners = {field: view.record.parts.get(field, "") for field in sorted(fields)}
    for field, owner in owners.items():
        if owner not in ("", call.part_of) and not call.force:
            text = f"{field} of node/{view.name} {await said_by(call, owner)}"
            raise Conflict(text, id=view.name, part_of=owner, hint=STATED)


def difference(old: Node, new: Node) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The settings of a node that differ, before and after."""
    before: dict[str, Scalar] = {}
    after: dict[str, Scalar] = {}
    was, becomes = _fields(old), _fields(new)
    for field in {**was, **becomes}:
        if was.get(field) != becomes.get(field):
            # A missing field has no value, which differs from an empty value.
            before |= {field: was[field]} if field in was else {}
            after |= {field: becomes[field]} if field in becomes else {}
    for name in ("cordoned", "cordon_reason", "address", "signatures"):
        if getattr(old, name) != getattr(new, name):
            before[name], after[name] = getattr(old, name), getattr(new, name)
    return before, after


def _fields(record: Node) -> dict[str, Scalar]:
    """The fields that people set."""
    told: dict[str, Scalar] = {f"labels.{key}": value for key, value in sorted(record.labels.items())}
    told |= {f"taints.{taint.key}:{taint.effect}": taint.value for taint in record.taints}
    told |= {f"volumes.{name}": volume.driver or LOCAL for name, volume in sorted(record.volumes.items())}
    amounts = sorted(record.capacity.items())
    told |= {f"capacity.{name}": amount_text(amount, exact=True) for name, amount in amounts}
    told |= {f"parts.{name}": owner for name, owner in sorted(record.parts.items())}
    if (drain := record.drain) is None:
        return told
    deadline = rfc3339(drain.deadline)
    told |= {"drain": drain.stage, "deadline": deadline if drain.deadline else ""}
    return told | ({"force": True} if drain.force else {})


# Waits until a node is drained: reads its pods, and the worker's status for why they stay.


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a drain; ``stage`` is empty where there is none."""

    name: str
    stage: str = ""
    left: int = 0
    left_system: int = 0
    overdue: bool = False
    waiting: list[str] = []


Report = Callable[[Look], None]


async def look(call: Call, name: str, system: facts.SystemPods) -> Look:
    """The present state of a node's drain.

    Raises:
        NotFound: there is no such node.
    """
    store = NodeStore(call.client, call.keys)
    view = await store.get(name)
    drain = view.record.drain
    if drain is None or drain.stage == "done":
        return Look(name=name, stage=drain.stage if drain is not None else "")
    condition = await store.condition(name)
    status = condition.status
    try:
        running = not condition.lost_since
        left = await facts.read_leftovers(call.client, call.keys, name, system, running=running)
    except NotRegistered:
        left = ()
    return Look(
        name=name,
        stage=drain.stage,
        left=len(left),
        left_system=sum(pod.system for pod in left),
        overdue=drain.overdue,
        waiting=status.waiting if status is not None and not condition.outdated(view) else [],
    )


async def drained(call: Call, name: str, timeout: float, report: Report) -> None:
    """Wait until a drain is done, at most ``timeout`` seconds.

    Raises:
        WaitTimeout: it is not; the message says what is left and why.
        Conflict: somebody ended the drain meanwhile.
    """
    system = facts.SystemPods(call.client, call.keys)

    def done(now: Look, _: bool) -> bool:
        if not now.stage:
            raise Conflict(f"node {name!r}: its drain was ended by somebody else", id=name)
        return now.stage == "done"

    async def late(now: Look) -> WaitTimeout:
        text = f"node {name!r} is not drained after {timeout:g} s: {describe(now)}"
        return WaitTimeout(text, hint=await _why(call, name), look=msgspec.to_builtins(now))

    await until(call, lambda: look(call, name, system), done, late, timeout, report)


def describe(now: Look) -> str:
    """One line: ``3 pods left, 1 of them the system's; past its deadline; rc/web: …``."""
    if now.stage == "done":
        return "drained"
    text = f"{now.left} {'pod' if now.left == 1 else 'pods'} left"
    if now.left_system:
        text += f", {now.left_system} of them the system's"
    return "; ".join([text, *(["past its deadline"] if now.overdue else []), *now.waiting])


async def _why(call: Call, name: str) -> str:
    farms = await overview.farms(call.client, call.keys)
    if not any("nodes" in farm.kinds for farm in farms):
        return (
            "no farm claims nodes, so no drain advances; start a farm with farmd run, and the drain continues"
        )
    return (
        f"the drain continues; see farmctl node describe {name}, or end it with farmctl node undrain {name}"
    )
