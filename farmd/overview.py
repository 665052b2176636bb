"""What the fleet looks like to people: controllers, pods and nodes, joined from what is stored.

Reads only, and only for people: no decision is made from these rows. A record that does not decode
stands beside the others as broken, and hides none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from store import codec
from store import daemonsets as daemonset_records
from store.daemonsets import DaemonSet, DaemonSetStore
from store.errors import RecordInvalid
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.farms import Member
from store.keys import Keys, is_sentinel
from store.locks import Holder
from store.named import Named
from store.nodes import Agent, Condition, Drain, Node, NodeListing, NodeStore, NodeView, Taint
from store.pods import Pod
from store.rcs import KIND, ReplicationController, ReplicationControllerStore
from store.reality import Reality, healthy
from store.status import Status, StatusStore

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

_MANY_NODES = 16


class ControllerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One controller: its record, what its owner last reported, and the farm that owns it."""

    record: ReplicationController
    index: int
    status: Status | None = None
    owner: str = ""

    @property
    def state(self) -> str:
        """One word: what is happening, or why nothing is."""
        if self.record.deleting:
            return "deleting"
        if not self.owner:
            return "unowned"
        if self.record.disabled:
            return "disabled"
        if self.status is None or self.status.desired != self.record.replicas_desired:
            return "pending"
        return self.status.state


class DaemonSetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon set: its record, what its owner last reported, and the farm that owns it."""

    record: DaemonSet
    index: int
    status: Status | None = None
    owner: str = ""

    @property
    def reported(self) -> bool:
        """Whether the report speaks of the record as it is now."""
        return self.status is not None and self.status.record in {0, self.index}

    @property
    def state(self) -> str:
        """One word: what is happening, or why nothing is."""
        if self.record.deleting:
            return "deleting"
        if not self.owner:
            return "unowned"
        if self.record.disabled:
            return "disabled"
        return self.status.state if self.status is not None and self.reported else "pending"


class PodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod: who owns it, where it stands, and what its node says of it."""

    owner: str
    owner_name: str
    node: str
    instance: str
    manifest: str
    labels: dict[str, str] = {}
    placed_at: float = 0.0
    phase: str = "waiting"
    health: str = "unknown"
    healthy: bool = False
    reason: str = ""
    started: float = 0.0
    restarts: int = 0
    pid: int = 0
    ports: dict[str, int] = {}


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node: people's word on it, its agent, how many pods stand on it, and what the farms say of it.

    ``left`` pods keep a drain from being done, for the reasons in ``waiting``.
    """

    name: str
    state: str
    labels: dict[str, str]
    pods: int = 0
    taints: list[Taint] = []
    cordon_reason: str = ""
    drain: Drain | None = None
    agent: Agent | None = None
    lost_since: float = 0.0
    absent_since: float = 0.0
    left: int = 0
    waiting: list[str] = []
    reason: str = ""


class Controllers(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[ControllerRow]
    broken: list[str]


class DaemonSets(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[DaemonSetRow]
    broken: list[str]


class Pods(msgspec.Struct, frozen=True):
    """Rows by owner's name, node and instance, and one line for each record that does not decode."""

    rows: list[PodRow]
    broken: list[str]


class Nodes(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[NodeRow]
    broken: list[str]


async def controllers(client: ConsulClient, keys: Keys) -> Controllers:
    """All controllers."""
    listing = await ReplicationControllerStore(client, keys).list()
    statuses = await StatusStore(client, keys, KIND).list()
    owners = await _owners(client, keys, KIND)
    rows = [
        ControllerRow(
            record=stored.record,
            index=stored.index,
            status=statuses.get(stored.record.id),
            owner=owners.get(stored.record.id, ""),
        )
        for stored in listing.items
    ]
    return Controllers(rows, [error.message for error in listing.broken])


async def controller(client: ConsulClient, keys: Keys, target: str) -> ControllerRow:
    """One controller by name, id or beginning of an id.

    Raises:
        NotFound: there is none. Ambiguous: several fit. RecordInvalid: it does not decode.
    """
    stored = await ReplicationControllerStore(client, keys).find(target)
    rc_id = stored.record.id
    lock = await client.read(keys.lock(KIND, rc_id))
    return ControllerRow(
        record=stored.record,
        index=stored.index,
        status=await StatusStore(client, keys, KIND).get(rc_id),
        owner="" if lock is None else _holder(lock.value),
    )


async def daemonsets(client: ConsulClient, keys: Keys) -> DaemonSets:
    """All daemon sets."""
    listing = await DaemonSetStore(client, keys).list()
    statuses = await StatusStore(client, keys, daemonset_records.KIND).list()
    owners = await _owners(client, keys, daemonset_records.KIND)
    rows = [
        DaemonSetRow(
            record=stored.record,
            index=stored.index,
            status=statuses.get(stored.record.id),
            owner=owners.get(stored.record.id, ""),
        )
        for stored in listing.items
    ]
    return DaemonSets(rows, [error.message for error in listing.broken])


async def daemonset(client: ConsulClient, keys: Keys, target: str) -> DaemonSetRow:
    """One daemon set by name, id or beginning of an id.

    Raises:
        NotFound: there is none. Ambiguous: several fit. RecordInvalid: it does not decode.
    """
    kind = daemonset_records.KIND
    stored = await DaemonSetStore(client, keys).find(target)
    lock = await client.read(keys.lock(kind, stored.record.id))
    return DaemonSetRow(
        record=stored.record,
        index=stored.index,
        status=await StatusStore(client, keys, kind).get(stored.record.id),
        owner="" if lock is None else _holder(lock.value),
    )


async def pods(client: ConsulClient, keys: Keys, of: Named | None = None) -> Pods:
    """All pods, or those of one owner."""
    broken: list[str] = []
    page = await client.list(keys.tree("pods") if of is None else keys.pods(of.id))
    placed: dict[tuple[str, str, str], Pod] = {}
    for raw in page.items:
        if is_sentinel(raw.key):
            continue
        try:
            placed[keys.pod_parts(raw.key)] = codec.decode(Pod, raw.decoded(), raw.key)
        except RecordInvalid as error:
            broken.append(error.message)
        except ValueError:
            broken.append(f"{raw.key}: expected pods/<owner>/<node>/<instance>")
    nodes = {node for _, node, _ in placed}
    realities = await _realities(client, keys, nodes, broken) if placed else {}
    names = {of.id: of.name} if of is not None else await _names(client, keys)
    rows = [
        _pod_row(owner, names.get(owner, ""), node, instance, pod, realities.get((node, instance)))
        for (owner, node, instance), pod in placed.items()
    ]
    rows.sort(key=lambda row: (row.owner_name, row.owner, row.node, row.instance))
    return Pods(rows, broken)


async def nodes(client: ConsulClient, keys: Keys) -> Nodes:
    """All nodes that people or agents know."""
    listing: NodeListing = await NodeStore(client, keys).list()
    page = await client.keys(keys.tree("intent"))
    counts: dict[str, int] = {}
    for key in page.items:
        if not is_sentinel(key):
            node, _ = keys.intent_parts(key)
            counts[node] = counts.get(node, 0) + 1
    said = await NodeStore(client, keys).conditions()
    views = listing.items.values()
    rows = [node_row(view, said.get(view.name, Condition()), counts.get(view.name, 0)) for view in views]
    return Nodes(rows, [error.message for error in listing.broken])


def node_row(view: NodeView, condition: Condition, pods: int) -> NodeRow:
    """One node's row."""
    record, status = view.record, condition.status
    draining = record.drain is not None and record.drain.stage != "done"
    told = status if status is not None and (draining or status.state == "blocked") else None
    return NodeRow(
        name=view.name,
        state=node_state(view.agent, record, condition.lost_since > 0),
        labels=view.labels,
        pods=pods,
        taints=record.taints,
        cordon_reason=record.cordon_reason,
        drain=record.drain,
        agent=view.agent,
        lost_since=condition.lost_since if view.agent is None else 0.0,
        absent_since=condition.absent_since if view.agent is None else 0.0,
        left=told.left if told is not None else 0,
        waiting=told.waiting if told is not None else [],
        reason=told.reason if told is not None else "",
    )


def node_state(agent: Agent | None, record: Node, lost: bool) -> str:
    """One or two words: ``ready``, ``absent`` or ``lost``, and ``cordoned``, ``draining`` or ``drained``."""
    words = ["ready" if agent is not None else "lost" if lost else "absent"]
    if record.drain is not None:
        words.append("drained" if record.drain.stage == "done" else "draining")
    elif record.cordoned:
        words.append("cordoned")
    return ",".join(words)


async def farms(client: ConsulClient, keys: Keys) -> list[Member]:
    """All farms that are present, by id; a presence that does not decode is left out."""
    page = await client.list(keys.tree("farms"))
    found = []
    for raw in page.items:
        if not is_sentinel(raw.key):
            try:
                found.append(codec.decode(Member, raw.decoded(), raw.key))
            except RecordInvalid:
                continue  # whoever wrote it is a newer version; it is present, but cannot be described
    return sorted(found, key=lambda member: member.id)


async def freezes(client: ConsulClient, keys: Keys, now: float) -> dict[str, Failsafe]:
    """The freezes that are in force, by kind of work."""
    stored = await FailsafeStore(client, keys).list()
    return {kind: item.record for kind, item in stored.items() if frozen(item.record, now)}


def _pod_row(owner: str, name: str, node: str, instance: str, pod: Pod, reality: Reality | None) -> PodRow:
    row = PodRow(
        owner=owner,
        owner_name=name,
        node=node,
        instance=instance,
        manifest=pod.manifest,
        labels=pod.labels,
        placed_at=pod.at,
    )
    if reality is None or (reality.owner and reality.owner != owner):
        return row
    return msgspec.structs.replace(
        row,
        phase=reality.phase if reality.manifest == pod.manifest else "replacing",
        health=reality.health.state,
        healthy=healthy(reality, pod.manifest),
        reason=reality.reason or reality.health.reason,
        started=reality.started,
        restarts=reality.restarts,
        pid=reality.pid,
        ports=reality.ports,
    )


async def _realities(
    client: ConsulClient, keys: Keys, wanted: set[str], broken: list[str]
) -> dict[tuple[str, str], Reality]:
    """What nodes run: one read a node, or of the whole tree where that is cheaper."""
    few = len(wanted) <= _MANY_NODES
    prefixes = [keys.realities(node) for node in sorted(wanted)] if few else [keys.tree("reality")]
    found: dict[tuple[str, str], Reality] = {}
    for prefix in prefixes:
        for raw in (await client.list(prefix)).items:
            if is_sentinel(raw.key):
                continue
            try:
                found[keys.reality_parts(raw.key)] = codec.decode(Reality, raw.decoded(), raw.key)
            except RecordInvalid as error:
                broken.append(error.message)
    return found


async def _names(client: ConsulClient, keys: Keys) -> dict[str, str]:
    """Names of owners by id; a daemon set's says what it is, because controllers may bear the same."""
    controllers = await ReplicationControllerStore(client, keys).list()
    names = {stored.record.id: stored.record.name for stored in controllers.items}
    sets = await DaemonSetStore(client, keys).list()
    return names | {stored.record.id: f"daemonset/{stored.record.name}" for stored in sets.items}


async def _owners(client: ConsulClient, keys: Keys, kind: str) -> dict[str, str]:
    page = await client.list(keys.lock(kind, ""))
    owners = {}
    for raw in page.items:
        _, item, mutation = keys.lock_parts(raw.key)
        if not mutation:
            owners[item] = _holder(raw.decoded())
    return owners


def _holder(value: bytes) -> str:
    holder = Holder.parse(value)
    return holder.id
