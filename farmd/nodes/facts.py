"""The facts of one node: its snapshot, how it is read, and how long its agent has been absent (R21)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import structlog

from farmd import kinds
from farmd.cache.caches import Caches, ManifestCache
from farmd.observe.progress import Loop
from farmd.runtime.wake import Wake, wait
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Blocked
from store import codec, families
from store.entry import RawEntry, Stored
from store.errors import NotFound, NotRegistered, RecordInvalid
from store.keys import Keys, is_sentinel
from store.named import Owner as Record
from store.nodes import Drain, Node, NodeStatus
from store.ports import Clock
from store.sessions import Session
from store.watch import WAIT_SECONDS
from store.work import Work

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

# The snapshot and the plan of a node.

NOTICE_SECONDS = 5.0
"""An agent that is absent for so long is reported; a restart within it is not."""

LOOK_SECONDS = 5.0
"""The period in which a drain reads why pods are left."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A pod that is left on a node, or still runs there. ``owner`` is its controller's id."""

    instance: str
    owner: str
    system: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One node at one moment.

    ``node`` is None without a record that decodes; ``broken`` says why it does not. ``absent_for`` is for how
    many seconds this farm itself has seen the agent absent; None: unknown, or the agent is present. ``left``
    is None unless a drain needs it; ``waiting`` says why those pods stay. ``stated`` are the labels that the
    agent stated last, as far as this farm knows them. ``status`` is the stored one. ``now`` is in seconds
    since the epoch.
    """

    node: Node | None
    present: bool
    work: Work
    absent_for: float | None
    grace: float
    frozen: str | None
    now: float
    farm: str
    left: tuple[Leftover, ...] | None = None
    waiting: tuple[str, ...] = ()
    stated: Mapping[str, str] = field(default_factory=dict)
    status: NodeStatus | None = None
    broken: str = ""

    @property
    def draining(self) -> Drain | None:
        """The drain that is not over yet."""
        return self.node.draining if self.node is not None else None

    @property
    def lost(self) -> bool:
        """Whether its agent is given up and has not returned."""
        return not self.present and self.work.lost_since > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to make now.

    ``register``: write the missing record. ``drain`` is the drain's new state, None: unchanged. ``status`` is
    for people, None: none. ``after``: seconds until time alone changes the plan. ``blocked``: a freeze holds
    back a due verdict, or the node waits for people.
    """

    register: bool = False
    verdict: Literal["", "lost", "back"] = ""
    drain: Drain | None = None
    status: NodeStatus | None = None
    after: float | None = None
    blocked: Blocked | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write except a status."""
        return not (self.register or self.verdict or self.drain)


# Measures for how long this farm itself sees agents absent; a node is given up by this alone (R21).
#
# Only seen absence counts: while the view is doubtful, late or interrupted nothing is known, and all
# absences begin anew once the view is good again. One sweep serves all nodes; it pauses while every agent
# is present.

log = structlog.get_logger()

TICK_SECONDS = 1.0
IDLE_SECONDS = 30.0
# A sweep that comes so much later than planned means that the process stood still and saw nothing.
LATE_SECONDS = 5.0
# Consul stretches waits by up to 1/16, and an answer takes its time.
STALE_SECONDS = WAIT_SECONDS * 17 / 16 + 5.0


@dataclass(eq=False)
class Absences:
    """The agents that this farm sees absent, and for how long.

    ``due`` is called with nodes whose time has come; ``look``, which checks the evidence, is called before.
    """

    caches: Caches
    keys: Keys
    clock: Clock
    grace: float
    due: Callable[[set[str]], None]
    beat: Loop
    look: Callable[[], object] = lambda: None
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _told: dict[str, int] = field(default_factory=dict, init=False)
    _session: Session | None = field(default=None, init=False)
    _epoch: int = field(default=0, init=False)
    _blind: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self._steps = sorted({min(NOTICE_SECONDS, self.grace), self.grace})
        self._looked = self.clock.mono()
        self._wake = Wake()
        self.caches.agents.subscribe(self._changed)
        self.caches.nodes.subscribe(self._changed)

    def under(self, session: Session) -> None:
        """Note the farm's session; a new session means a gap before it."""
        if session is not self._session:
            if self._session is not None:
                self._blind = True
            self._session, self._epoch = session, session.epoch
            self._wake.set()

    def seconds(self, node: str) -> float | None:
        """For how long the agent was seen absent; None: it is present, or the absence is unknown."""
        since = self._since.get(node)
        return None if since is None or self._blind else self.clock.mono() - since

    def present(self, node: str) -> bool:
        """Whether the agent is present; a record of a newer version counts."""
        return self.caches.agents.holds(self.keys.agent(node))

    async def run(self) -> None:
        """Sweep until cancelled."""
        await self.caches.nodes.ready.wait()
        await self.caches.agents.ready.wait()
        self._looked = self.clock.mono()
        try:
            while True:
                pause = self.sweep()
                self.beat.beat()
                await wait(self._wake, self.clock, pause)
                if self.clock.mono() - self._looked > pause + LATE_SECONDS:
                    self._blind = True
                self._wake.clear()
        finally:
            self.beat.close()

    def sweep(self) -> float:
        """Sweep once and call ``due`` for nodes whose time has come; returns seconds until the next sweep."""
        self._looked = self.clock.mono()
        if why := self._doubt():
            if not self._blind:
                log.info("absences.doubt", reason=why)
            self._blind = True
            return TICK_SECONDS
        if self._blind:
            self._blind = False
            self._begin_anew()
        due, pending = set(), False
        for node, since in self._since.items():
            passed = sum(self._looked - since >= step for step in self._steps)
            if passed > self._told.get(node, 0):
                self._told[node] = passed
                due.add(node)
            pending = pending or passed < len(self._steps)
        if due:
            self.look()  # a mass loss must freeze removals before any worker acts on it
            self.due(due)
        return TICK_SECONDS if pending else IDLE_SECONDS

    def _doubt(self) -> str:
        """Why absence cannot be known now; empty: it can."""
        agents, session = self.caches.agents, self._session
        if not agents.ready.is_set():
            return "never read"
        if agents.doubt or agents.error:
            return str(agents.doubt or agents.error)
        if agents.staleness() > STALE_SECONDS:
            return "the watch is silent"
        if session is not None and (not session.valid() or session.epoch != self._epoch):
            self._epoch = session.epoch
            return "the session was not renewed in time"
        return ""

    def _begin_anew(self) -> None:
        now, nodes = self.clock.mono(), self.caches.nodes
        known = map(self.keys.last_part, (*nodes.entries, *nodes.broken))
        self._since = {node: now for node in known if not self.present(node)}
        self._told = {}

    def _changed(self, changed: set[str]) -> None:
        if not (self.caches.agents.ready.is_set() and self.caches.nodes.ready.is_set()):
            return  # before the first full answer every agent seems absent
        for node in map(self.keys.last_part, changed):
            if self.caches.nodes.holds(self.keys.node(node)) and not self.present(node):
                if node not in self._since:
                    self._since[node] = self.clock.mono()
                    self._wake.set()
            else:
                self._since.pop(node, None)
                self._told.pop(node, None)


# Reads the pods that are left on a node and why they stay, for drains and their previews.
#
# An intent is a pod that the node must run, a reality one that it does run: a drain waits for both. An
# answer without the node's own sentinel proves no absence (R20).

UNKNOWN_OWNER = "unknown"


class _Said(msgspec.Struct):
    """The fields that an intent and a reality share."""

    manifest: str = ""
    owner: str = UNKNOWN_OWNER


class _Reported(msgspec.Struct):
    """The field that the statuses of all owners share."""

    reason: str = ""


class SystemPods:
    """Tells which manifests are a system pod's."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._manifests = ManifestCache(client, keys)

    async def __call__(self, sha: str) -> bool:
        """Whether the manifest is a system pod's; one that cannot be read counts as an ordinary pod's."""
        try:
            return (await self._manifests.get(sha)).system
        except (NotFound, RecordInvalid):
            return False


async def read_leftovers(
    client: ConsulClient, keys: Keys, node: str, system: SystemPods, *, running: bool = True
) -> tuple[Leftover, ...]:
    """The pods of a node by instance; ``running``: also pods that merely still run there.

    Raises:
        NotRegistered: the answer has no sentinel, and says nothing about what is not in it.
    """
    page = await client.list(keys.intents(node))
    sentinel = keys.sentinel(keys.intents(node))
    if not any(raw.key == sentinel for raw in page.items):
        raise NotRegistered(
            f"node {node!r}: {sentinel} is missing, so an empty answer proves nothing", node=node
        )
    seen = (await client.list(keys.realities(node))).items if running else []
    # The intents come last and win, because they know the owner better.
    said = {keys.last_part(raw.key): _said(raw) for raw in (*_records(seen), *_records(page.items))}
    return tuple(
        [Leftover(instance, one.owner, await system(one.manifest)) for instance, one in sorted(said.items())]
    )


def _records(items: Iterable[RawEntry]) -> Iterable[RawEntry]:
    return (raw for raw in items if not is_sentinel(raw.key))


def _said(raw: RawEntry) -> _Said:
    try:
        return codec.decode(_Said, raw.decoded(), raw.key)
    except RecordInvalid:
        return _Said()  # it is there all the same, and must not count as gone


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of pods: ``kind`` and ``title`` (``rc/web``), and why its pods stay; empty if they leave.

    ``moves``: pods that leave come up on another node.
    """

    kind: str
    title: str
    stays: str = ""
    moves: bool = False


def owner_of(family: str, record: Record) -> Owner:
    """The owner of a record."""
    return Owner(family, kinds.title(family, record.name), record.stays, moves=record.count is not None)


def nobody(owner_id: str) -> Owner:
    """An owner that has no record."""
    return Owner("", owner_id, "no record has that id, so no farm moves its pods")


async def find_owner(client: ConsulClient, keys: Keys, owner_id: str) -> Owner:
    """An owner, from the store; one whose record does not decode moves nothing."""
    for family in families.owners():
        entry = await client.read(keys.record(family.name, owner_id))
        if entry is not None:
            try:
                return owner_of(family.name, families.decode(keys, family.name, entry))
            except RecordInvalid as error:
                return Owner("", owner_id, error.message)
    for family in families.actors():
        entry = await client.read(keys.record(family.name, owner_id))
        with suppress(RecordInvalid):
            record = None if entry is None else families.decode(keys, family.name, entry)
            if record is not None and (during := families.acting(family.name, record)):
                title = kinds.title(family.name, record.name)
                return Owner("", title, f"{during} runs it, and removes it once it has ended")
    return nobody(owner_id)


async def reason(client: ConsulClient, keys: Keys, owner_id: str, owner: Owner) -> str:
    """Why an owner's pods are still there, in one line for people; empty while they are leaving."""
    if owner.stays:
        return f"{owner.title}: {owner.stays}"
    entry = await client.read(keys.status(owner.kind, owner_id))
    try:
        status = codec.decode(_Reported, entry.value, entry.key) if entry is not None else _Reported()
    except RecordInvalid:
        status = _Reported()
    return f"{owner.title}: {status.reason}" if status.reason else ""


# Reads the input of one node's decision: its record, its agent, and what a drain waits for (R15).
#
# An idle node costs no request; only a drain reads what is left, each time.

OWNERS_AT_MOST = 20
_NO_WORK = Work()


async def barrier(caches: Caches) -> None:
    """Read the input of verdicts and drains (R15)."""
    for tree in (caches.nodes, caches.agents, caches.work):
        await tree.barrier()


async def read(
    node: str,
    stored: Stored[Node] | RecordInvalid | None,
    status: NodeStatus | None,
    absences: Absences,
    system: SystemPods,
    kind: Kind,
) -> Snapshot:
    """The present snapshot. ``status`` is the stored one."""
    context = kind.context
    present = absences.present(node)
    work = context.caches.work.get(context.keys.work(kind.name, node))
    snapshot = Snapshot(
        node=stored.record if isinstance(stored, Stored) else None,
        present=present,
        work=work.record if work is not None else _NO_WORK,
        absent_for=None if present else absences.seconds(node),
        grace=absences.grace,
        frozen=kind.guard.frozen(),
        now=context.clock.now(),
        farm=context.farm,
        stated=context.fleet.stated(node),
        status=status,
        broken=stored.message if isinstance(stored, RecordInvalid) else "",
    )
    if snapshot.draining is None:
        return snapshot
    # On a lost node the running processes are unknown.
    running = not snapshot.lost
    try:
        left = await read_leftovers(context.client, context.keys, node, system, running=running)
    except NotRegistered as error:
        return dataclasses.replace(snapshot, waiting=(error.message,))
    return dataclasses.replace(snapshot, left=left, waiting=await _reasons(left, context))


async def _reasons(left: tuple[Leftover, ...], context: Context) -> tuple[str, ...]:
    """Why the pods stay that a drain waits for, from their owners' statuses."""
    reasons = []
    for owner in sorted({pod.owner for pod in left})[:OWNERS_AT_MOST]:
        known = _owner(context, owner) or await find_owner(context.client, context.keys, owner)
        reasons.append(await reason(context.client, context.keys, owner, known))
    return tuple(text for text in reasons if text)


def _owner(context: Context, owner_id: str) -> Owner | None:
    for tree in context.caches.owners():
        stored = tree.get(context.keys.record(tree.family, owner_id))
        if stored is not None:
            return owner_of(tree.family, stored.record)
    return None
