"""Nodes: the record that people write, and the presence of the node's agent.

People and the ``nodes`` kind of work write ``nodes/<node>``; the agent's session holds its presence
``agents/<node>``, which is deleted with the session; the renewal of the session is the heartbeat.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal, TypeVar

import msgspec

from store import codec, operations
from store.entry import Entry, Stored
from store.errors import Conflict, NotFound, RecordInvalid, refuse
from store.keys import Keys
from store.named import records
from store.operations import Operation
from store.ports import KeyReader
from store.status import ItemStatus
from store.times import Time
from store.work import Work

T = TypeVar("T", bound=msgspec.Struct)

Effect = Literal["no-schedule", "prefer-no-schedule"]


_HOST = re.compile(r"(?!.*\.\.)[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")


def is_host(text: str) -> bool:
    """Whether a text can be where a node is reached: a host's name or an IP address, without a port."""
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return _HOST.fullmatch(text) is not None


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keeps pods without a toleration for it off the node."""

    key: str
    value: str = ""
    effect: Effect = "no-schedule"


class Drain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A drain in progress: ``stage`` advances pods → system → done; times are seconds since the epoch.

    The node's worker sets ``overdue`` once the deadline has passed. With ``force`` a person allows that the
    rest is then removed even if an owner falls below its health floor. ``cordoned``: the node was cordoned
    before the drain.
    """

    stage: Literal["pods", "system", "done"] = "pods"
    since: Time = 0.0
    deadline: Time = 0.0
    by: str = ""
    reason: str = ""
    force: bool = False
    overdue: bool = False
    cordoned: bool = False

    @property
    def ignores_floor(self) -> bool:
        """Whether pods must leave now even if their owner falls below its health floor."""
        return self.force and self.overdue


class NodeStatus(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of a node, for people; a node without trouble has none.

    ``left`` counts the pods that a drain still waits for, ``left_system`` the system pods among them;
    ``waiting`` holds one reason a line, such as ``rc/web: would fall below its health floor``. ``labels`` are
    those that an absent agent stated last. ``record`` is the ModifyIndex of the node's record that the status
    is about; 0 in statuses of older farms.
    """

    state: Literal["absent", "lost", "draining", "drained", "blocked"]
    absent_since: Time = 0.0
    left: int = 0
    left_system: int = 0
    waiting: list[str] = msgspec.field(default_factory=list)
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class NodeVolume(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A named volume of a node. An empty ``driver`` is ``local``; it was made for ``service``."""

    driver: str = ""
    options: dict[str, str] = {}
    labels: dict[str, str] = {}
    service: str = ""


class Node(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node's record, which people write; its labels and capacity override the agent's facts.

    ``volumes`` are those whose data lie on the node, by name: known also while its agent is absent, so that
    none is made anew, empty, on another node. ``address`` is the host where others reach the node, and
    ``signatures`` the policy of its agent (R32), as people say them; empty: as its agent says. ``parts``: the
    apps that state some of it, such as ``{"labels.rack": "apps/shop"}``; others do not change that.
    """

    labels: dict[str, str] = {}
    taints: list[Taint] = []
    cordoned: bool = False
    cordon_reason: str = ""
    drain: Drain | None = None
    capacity: dict[str, float] = {}
    volumes: dict[str, NodeVolume] = {}
    address: str = ""
    signatures: Literal["", "none", "warn", "enforce"] = ""
    parts: dict[str, str] = {}

    @property
    def draining(self) -> Drain | None:
        """The drain that is not over yet."""
        return self.drain if self.drain is not None and self.drain.stage != "done" else None


class Agent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Presence of a node's agent: its version, facts (labels, capacity) and HTTP address.

    ``boot``, ``pid`` and ``ticks`` (its start, in clock ticks since boot) identify the process. ``doubts``
    has the runtimes that cannot tell now what runs, with the reasons. ``trusts`` are the patterns of the
    owners that each key may sign for here, by the key's id; None: it says nothing of that. ``closed``: why
    the agent starts no pod now. ``left``: what workloads left there and the agent cannot remove, by its path,
    with the reasons. ``denied``: what its token lacks of the rights that an agent needs.
    """

    LARGEST: ClassVar[int] = 64 * 1024

    node: str
    version: str
    features: list[str] = []
    labels: dict[str, str] = {}
    capacity: dict[str, float] = {}
    address: str = ""
    host: str = ""
    boot: str = ""
    pid: int = 0
    ticks: int = 0
    since: Time = 0.0
    doubts: dict[str, str] = {}
    trusts: dict[str, list[str]] | None = None
    closed: str = ""
    left: dict[str, str] = {}
    denied: str = ""


class Reserved(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resources reserved on a node: a map from instances to amounts, not a sum (R17).

    ``generation`` counts placements.
    """

    instances: dict[str, dict[str, float]] = {}
    generation: int = 0

    def without(self, gone: Collection[str]) -> Reserved:
        """The next record, without the reservations of these instances."""
        left = {name: amounts for name, amounts in self.instances.items() if name not in gone}
        return Reserved(left, self.generation + 1)


def effective_labels(node: Node | None, agent: Agent | None) -> dict[str, str]:
    """A node's labels: the agent's facts, overridden by the node's record."""
    facts = agent.labels if agent is not None else {}
    return {**facts, **(node.labels if node is not None else {})}


class NodeRecords(msgspec.Struct, frozen=True):
    """The records of one node: the node's record, the agent's presence, or both.

    ``unreadable`` is the error of an agent's presence that does not decode.
    """

    name: str
    node: Stored[Node] | None = None
    agent: Agent | None = None
    unreadable: str = ""

    @property
    def record(self) -> Node:
        """The node's record, or an empty one."""
        return self.node.record if self.node is not None else Node()

    @property
    def labels(self) -> dict[str, str]:
        """The labels that selectors see."""
        return effective_labels(self.record, self.agent)


class Condition(msgspec.Struct, frozen=True):
    """What the farms wrote about a node: whether its agent is absent or lost, and the node's status.

    Times are seconds since the epoch, 0 for never. ``status_index`` is the ModifyIndex of the status.
    """

    lost_since: Time = 0.0
    absent_since: Time = 0.0
    status: NodeStatus | None = None
    status_index: int = 0

    def outdated(self, view: NodeRecords) -> bool:
        """Whether the status is about the node's record before its last change.

        A status is written in the transaction of that change, or in one that checks the record.
        """
        index = view.node.index if view.node is not None else 0
        return self.status is not None and self.status.record not in {0, index} and self.status_index < index


class NodeListing(msgspec.Struct, frozen=True):
    """All nodes by name, and the errors of the records that do not decode."""

    items: dict[str, NodeRecords]
    broken: list[RecordInvalid]


class NodeStore:
    """Reads nodes and agents, and builds the operation that changes a node's record."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def get(self, name: str) -> NodeRecords:
        """One node with a record, an agent's presence or a registration.

        Raises:
            NotFound: the node has none of them.
            RecordInvalid: the node's record does not decode.
        """
        node = await self._client.read(self._keys.node(name))
        agent = await self._client.read(self._keys.agent(name))
        if node is None and agent is None:
            registered = await self._client.read(self._keys.sentinel(self._keys.intents(name)))
            if registered is None:
                raise NotFound(f"node {name!r} does not exist", kind="nodes", id=name)
        people = None if node is None else codec.stored(Node, node)
        try:
            stated = None if agent is None else codec.decode(Agent, agent.value, agent.key)
        except RecordInvalid as error:
            return NodeRecords(name, people, unreadable=error.message)
        return NodeRecords(name, people, stated)

    async def list(self) -> NodeListing:
        """All nodes with a record or an agent's presence, and the errors of those that do not decode."""
        people = await records(self._client, self._keys.tree("nodes"), Node)
        nodes, (agents, more) = people.named, await self.agents()
        unreadable = {self._keys.last_part(error.fields["key"]): error.message for error in more}
        views = {
            name: NodeRecords(
                name,
                nodes.get(name),
                agents[name].record if name in agents else None,
                unreadable.get(name, ""),
            )
            for name in sorted({*nodes, *agents, *unreadable})
        }
        return NodeListing(views, [*people.broken, *more])

    async def agents(self) -> tuple[dict[str, Stored[Agent]], Sequence[RecordInvalid]]:
        """The records of agents by node, and the errors of the records that do not decode."""
        found = await records(self._client, self._keys.tree("agents"), Agent)
        return found.named, found.broken

    async def condition(self, name: str) -> Condition:
        """What the farms wrote about one node."""
        work = await self._client.read(self._keys.work("nodes", name))
        status = await self._client.read(self._keys.status("nodes", name))
        return _condition(work, status)

    async def conditions(self) -> dict[str, Condition]:
        """What the farms wrote, by node; nodes about which they wrote nothing are missing."""
        found: list[dict[str, Entry]] = []
        for prefix in (self._keys.work("nodes", ""), self._keys.status("nodes", "")):
            page = await self._client.list(prefix)
            found.append({self._keys.last_part(raw.key): Entry.of(raw) for raw in page.items})
        works, statuses = found
        return {name: _condition(works.get(name), statuses.get(name)) for name in sorted({*works, *statuses})}

    def write(self, view: NodeRecords, record: Node) -> Operation:
        """Create or replace a node's record if it has not changed since; unknown fields are kept."""
        if view.node is None:
            return operations.create(self._keys.node(view.name), codec.encode(record))
        stored = view.node
        return operations.cas(stored.key, codec.rewrite(record, stored.raw), stored.index, flags=stored.flags)


def _condition(work: Entry | None, status: Entry | None) -> Condition:
    """A condition is only for people, so records that do not decode are left out: doctor reports them."""
    said = _lenient(Work, work) or Work()
    told = _lenient(NodeStatus, status)
    absent = said.absent_since or (told.absent_since if told is not None else 0.0)
    return Condition(said.lost_since, absent, told, status.modify_index if status is not None else 0)


def _lenient(kind: type[T], entry: Entry | None) -> T | None:
    try:
        return None if entry is None else codec.decode(kind, entry.value, entry.key)
    except RecordInvalid:
        return None


# Named volumes: which node has which is noted in the nodes' records, and one key a name keeps makers apart.
#
# Every transaction that makes a volume also writes ``names/volumes/<name>``: with CAS 0 where the maker saw
# the volume on no node, else with the index that was read before the nodes were. So two that begin at the
# same time never make one volume, with two different contents, on two nodes.

KIND = "volumes"
NOUN = "volume"
MOST = 200
LOCAL = "local"
"""The driver of a volume of which none is named."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


def is_volume_name(name: str) -> bool:
    """Whether a volume may have this name, for every engine and as a label of its node."""
    return _NAME.fullmatch(name) is not None


def valid_volume_name(name: str) -> str:
    """The name, if a volume may have it.

    Raises:
        InputInvalid: it may not.
    """
    if not is_volume_name(name):
        refuse("name", repr(name), "1 to 63 of letters, digits, '.', '_' and '-'")
    return name


def claim(keys: Keys, name: str, node: str, index: int) -> Operation:
    """The write by which only one of several makers makes the volume, here on a node.

    ``index`` is 0 where the volume was on no node, else that of the name's key, read before the nodes were.
    """
    return operations.cas(keys.name(KIND, name), codec.encode(node), index)


def with_volume(node: Node, name: str, volume: NodeVolume) -> Node:
    """The node's record with one more volume.

    Raises:
        Conflict: it has as many as a node may have.
    """
    if len(node.volumes) >= MOST and name not in node.volumes:
        raise Conflict(f"volumes: the node has {len(node.volumes)}, expected at most {MOST}")
    return msgspec.structs.replace(node, volumes={**node.volumes, name: volume})
