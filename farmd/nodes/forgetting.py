"""Forgets a node that is gone for good: all its records are deleted in one transaction.

What must never break: no node is forgotten whose agent is present, or to which a pod, a reservation or a move
still refers, and nothing of a forgotten node is left in the store. A farm places no pod on a node whose agent
is absent; that the node is also given up or cordoned ensures that no pod is on its way. An agent that comes
back registers like a new node's (R20).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from farmd.commands.mutation import Call, Change, Mutation, guard, registered
from farmd.nodes import facts
from store import codec, families, operations
from store.entry import Entry
from store.errors import Conflict, NotFound, NotRegistered, RecordInvalid
from store.keys import is_sentinel, valid_segment
from store.named import records
from store.nodes import KIND as VOLUMES
from store.nodes import Node, Reserved
from store.operations import Operation
from store.pods import Pod
from store.words import listed
from store.work import Work

KIND = "nodes"
PROVEN = ("agents", "nodes", "pods", "intent", "reserved", "work")


async def forget(call: Call, name: str) -> Mutation:
    """Delete a node's record, registration, reservations, verdict, status and last realities.

    Raises:
        NotFound: the node is unknown. Locked: somebody holds its mutation lock.
        Conflict: its agent is there, something refers to it, it has volumes, or it is neither given up nor
            cordoned.
        NotRegistered: a sentinel is missing, so what was not found may be there all the same (R20).
    """
    keys, cluster = call.keys, await registered(call)
    await _require_sentinels(call, name)
    own = (
        keys.node(valid_segment(name, "node")),
        keys.work(KIND, name),
        keys.reserved(name),
        keys.sentinel(keys.intents(name)),
    )
    standing = {key: await _read(call, key) for key in own}
    node, work, reserved, sentinel = standing.values()
    await _refuse_present(call, name)
    if node is None and sentinel is None:
        raise NotFound(f"node {name!r} does not exist", kind=KIND, id=name)
    await _refuse_used(call, name, reserved)
    await _refuse_volumes(call, name, node)
    _refuse_in_use(name, node, work)
    held = await guard(call, KIND, name, f"node {name!r}")
    change = Change(
        KIND,
        name,
        name,
        "node.forget",
        before={"exists": True, **held.before},
        after={"exists": False, **held.after},
        details=await _details(call, name),
        destructive=True,
    )
    return Mutation(
        change,
        (
            cluster,
            *held.operations,
            operations.check_not_exists(keys.agent(name)),
            operations.delete(keys.status(KIND, name)),
            operations.delete_tree(keys.realities(name)),
            *(_delete(key, entry) for key, entry in standing.items()),
        ),
    )


async def _require_sentinels(call: Call, name: str) -> None:
    for tree in PROVEN:
        if await _read(call, key := call.keys.sentinel(call.keys.tree(tree))) is None:
            raise NotRegistered(
                f"{key}: missing, so it is unknown whether anything refers to {name!r}", key=key
            )


async def _refuse_present(call: Call, name: str) -> None:
    if await _read(call, call.keys.agent(name)) is not None:
        raise Conflict(
            f"node {name!r}: its agent is running, expected a node that is gone for good",
            id=name,
            hint=f"farmctl node drain {name} --wait empties it; then stop its agent for good",
        )


async def _read(call: Call, key: str) -> Entry | None:
    """A consistent read."""
    return await call.client.read(key, mode="consistent")


def _delete(key: str, entry: Entry | None) -> Operation:
    """Delete what was read, and nothing that came or changed since."""
    return (
        operations.check_not_exists(key) if entry is None else operations.delete_cas(key, entry.modify_index)
    )


async def _details(call: Call, name: str) -> tuple[str, ...]:
    page = await call.client.keys(call.keys.realities(name), mode="consistent")
    ran = sorted(call.keys.last_part(key) for key in page.items)
    return (f"was last seen running {listed(ran)}",) if ran else ()


async def _refuse_volumes(call: Call, name: str, node: Entry | None) -> None:
    """Refuse a node that has volumes: without the note they would be made anew, empty, elsewhere.

    The names of volumes tell of those of a record that does not decode.
    """
    named = (await call.client.list(call.keys.name(VOLUMES, ""), mode="consistent")).items
    there = {call.keys.last_part(raw.key) for raw in named if raw.decoded() == codec.encode(name)}
    volumes = sorted({*_record(node).volumes, *there})
    if volumes:
        raise Conflict(
            f"node {name!r} has the volumes {listed(volumes)}",
            id=name,
            hint=f"if their data is no longer needed: farmctl volume delete --node {name} NAME...",
        )


def _record(node: Entry | None) -> Node:
    """What people said of it; nothing if the record does not decode."""
    with suppress(RecordInvalid):
        return Node() if node is None else codec.decode(Node, node.value, node.key)
    return Node()


def _refuse_in_use(name: str, node: Entry | None, work: Entry | None) -> None:
    """Refuse a node that farms may still use, even if nothing is there now."""
    lost = work is not None and codec.decode(Work, work.value, work.key).lost_since > 0
    cordoned = _record(node).cordoned
    if not (lost or cordoned or node is None):
        raise Conflict(
            f"node {name!r} is neither lost nor cordoned: a farm may be about to use it",
            id=name,
            hint=f"wait until it is lost (farm.lost_after), or close it first: farmctl node cordon {name}",
        )


async def _refuse_used(call: Call, name: str, reserved: Entry | None) -> None:
    found = [text async for text in _references(call, name, reserved)]
    if found:
        raise Conflict(
            f"node {name!r} is still referenced: {listed(found)}",
            id=name,
            hint=f"farmctl node drain {name} takes pods off, with --force --deadline 1s --reason TEXT also"
            f" those that wait for a lost node; farmctl doctor --fix {name} removes what has no owner",
        )


async def _references(call: Call, name: str, reserved: Entry | None) -> AsyncIterator[str]:
    """The pods, reservations and moves that refer to the node, as text."""
    keys, pods = call.keys, dict[str, str]()
    page = await call.client.keys(keys.tree("pods"), mode="consistent")
    for key in page.items:
        if not is_sentinel(key) and families.well_formed(keys, "pods", key):
            owner, node, instance = keys.pod_parts(key)
            if node == name:
                pods[instance] = owner
    intents = await call.client.keys(keys.intents(name), mode="consistent")
    standing = {keys.last_part(key) for key in intents.items if not is_sentinel(key)}
    for instance in sorted(standing | pods.keys()):
        if instance not in standing and await _over(call, keys.pod(pods[instance], name, instance)):
            continue
        owner = await _title(call, pods[instance]) if instance in pods else "nobody"
        yield f"pod {instance} of {owner}"
    book = codec.decode(Reserved, reserved.value, reserved.key) if reserved is not None else Reserved()
    for instance in sorted(book.instances.keys() - standing - pods.keys()):
        yield f"a reservation for {instance}"
    async for text in _arriving(call, name, standing | pods.keys()):
        yield text


async def _over(call: Call, key: str) -> bool:
    """Whether a pod ended well for good, so that it needs its node no more."""
    entry = await call.client.read(key, mode="consistent")
    return entry is not None and codec.decode(Pod, entry.value, entry.key).done


async def _arriving(call: Call, name: str, there: set[str]) -> AsyncIterator[str]:
    """Moves that have chosen a place there and have not placed the pod."""
    # Of work that does not decode, its worker goes by none either; the doctor reports it.
    for stored in (await records(call.client, call.keys.tree("work"), Work, "consistent")).items:
        transfer = stored.record.transfer
        if transfer is not None and transfer.new_node == name and transfer.new_instance not in there:
            owner = await _title(call, call.keys.last_part(stored.key))
            yield f"a move of {transfer.old_node}/{transfer.old_instance} of {owner} to it"


async def _title(call: Call, owner: str) -> str:
    return (await facts.find_owner(call.client, call.keys, owner)).title
