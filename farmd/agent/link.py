"""Keeps the agent's cluster id, its session and the presence of its node in the store (R21).

The session belongs to the node: its id is in the state directory, a restart renews it, a stop does
not destroy it. A second live agent of the same name is refused. Only an agent without workloads registers
its node or joins another cluster (R20); for an agent with workloads, missing sentinels mean a broken store.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from farmd.agent.errors import AgentError, ForeignCluster, NodeTaken
from farmd.agent.lease import Leases
from farmd.agent.model import AgentConfig
from farmd.agent.state import AgentIdentity, StateDirectory
from farmd.runtime.wake import wait
from store import codec, presence, registration
from store.consul.client import ConsulClient
from store.errors import AccessDenied, Conflict, RecordInvalid, StoreError
from store.keys import Keys
from store.nodes import Agent as Presence
from store.nodes import Node
from store.ports import Clock, Recorder, Rng
from store.sessions import JOINING, Session
from store.version import VERSION

# How long the agent has had no contact with the store; ``stop_after`` is measured by this (R27).
#
# Contact is a good renewal of the session that holds the node's presence, at the time when it was sent. The
# count begins when a renewal is overdue, so not between two regular renewals, and long before the TTL is
# over and farms may replace the pod. Shims and guards read it in the agent's ``Leases``. For pods of
# earlier versions, which have neither, the last contact is saved from time to time, so that a restart of
# the agent does not reset the count.

SAVE_SECONDS = 5.0
FIRST_CHANCE = 10.0


class Contact:
    """Remembers the last contact; ``overdue`` is the seconds after it when the next one is overdue."""

    def __init__(
        self, clock: Clock, state: StateDirectory, overdue: float, leases: Leases | None = None
    ) -> None:
        self._leases = leases or Leases()
        self._clock = clock
        self._state = state
        self._overdue = overdue
        self._began = self._last = clock.mono()
        self._made = False
        self._saved = float("-inf")

    def load(self) -> None:
        """Continue from the contact that an earlier agent of this node saved."""
        at = self._state.saved_contact()
        self._began = self._clock.mono()
        self._last = self._began - (max(0.0, self._clock.now() - at) if at is not None else 0.0)

    def made(self, age: float = 0.0) -> None:
        """Record a contact ``age`` seconds ago."""
        self._made = True
        self._leases.renewed(self._overdue - age)
        self._last = max(self._last, self._clock.mono() - age)

    def age(self) -> float:
        """Seconds since contact became overdue; 0 in a new agent's first ``FIRST_CHANCE`` seconds."""
        now = self._clock.mono()
        if not self._made and now < self._began + FIRST_CHANCE:
            return 0.0
        return max(0.0, now - self._last - self._overdue)

    def save(self) -> None:
        """Save the last contact, at most every ``SAVE_SECONDS``."""
        if self._last >= self._saved + SAVE_SECONDS:
            self._saved = self._last
            self._state.save_contact(self._clock.now() - (self._clock.mono() - self._last))


# The facts that an agent states of its node: labels and capacity. Labels that people set win over these.


def labels(configured: Mapping[str, str]) -> dict[str, str]:
    """``os``, ``arch``, ``kernel``, ``hostname``; the configured ones win."""
    found = {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "hostname": platform.node(),
    }
    return found | dict(configured)


def capacity() -> dict[str, float]:
    """``cpu`` in cores that this process may use, ``memory`` in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": float(len(os.sched_getaffinity(0))), "memory": float(memory)}


log = structlog.get_logger()

BACKOFF_START = 0.25
BACKOFF_LIMIT = 5.0


@dataclass(eq=False)
class Link:
    """Keeps session and presence; ``present`` is set while this agent holds the node's presence.

    ``lacks`` says for people what it waits for otherwise.
    """

    config: AgentConfig
    client: ConsulClient
    keys: Keys
    state: StateDirectory
    contact: Contact
    clock: Clock
    rng: Rng
    recorder: Recorder
    any_workloads: Callable[[str], bool]
    acted_on: Callable[[Mapping[str, int]], bool]
    features: Callable[[], list[str]]
    doubts: Callable[[], dict[str, str]]
    trusts: Callable[[], dict[str, list[str]] | None]
    closed: Callable[[], str]
    left: Callable[[], dict[str, str]]
    denied: Callable[[], str]
    look: Callable[[], Awaitable[None]]
    _trouble: str = field(default=JOINING, init=False)
    _joined: Session | None = field(default=None, init=False)
    _said: str = field(default="", init=False)
    _announced: Presence | None = field(default=None, init=False)
    """What the store took from this agent; None: that is unknown, so it is to be told again."""

    def __post_init__(self) -> None:
        self._key = self.keys.agent(self.config.node)
        self._doubt = asyncio.Event()
        self._since = self.clock.now()
        self.identity = AgentIdentity(self.config.node)
        self.present = asyncio.Event()

    @property
    def session(self) -> str:
        """The id of the session that holds the presence."""
        return self.identity.session

    @property
    def changed(self) -> bool:
        """Whether the presence says something else than what the agent can do, tells and trusts now."""
        said = self._announced
        return said is None or any(getattr(said, name) != now for name, now in self._says().items())

    def _says(self) -> dict[str, Any]:
        """What changes in the record while the agent runs."""
        return {
            "features": self.features(),
            "doubts": self.doubts(),
            "trusts": self.trusts(),
            "closed": self.closed(),
            "left": self.left(),
            "denied": self.denied(),
        }

    def lacks(self) -> str:
        """Why this agent does not hold the node's presence, or may lose it now; empty: it holds it."""
        if not self.present.is_set():
            return self._trouble
        assert self._joined is not None
        return self._joined.lacks()

    def doubt(self) -> None:
        """Check the presence at once, because another part found that it may not be this agent's."""
        self._doubt.set()

    async def run(self) -> None:
        """Join, stay, and join again when the session is lost.

        Raises:
            NodeTaken: a live agent elsewhere has this node's name.
        """
        backoff = BACKOFF_START
        while True:
            try:
                session = await self._join()
            except (StoreError, ForeignCluster) as error:
                self._say(error)
                self._trouble = f"waiting for Consul: {error.message}"
                await self.clock.sleep(backoff * self.rng.uniform(0.5, 1.5))
                backoff = min(backoff * 2, BACKOFF_LIMIT)
                continue
            backoff = BACKOFF_START
            self._said, self._trouble, self._joined = "", JOINING, session
            log.info("agent.present", node=self.config.node, cluster=self.identity.cluster)
            self._renewed(session.heard)
            self.present.set()
            try:
                await self._stay(session)
            finally:
                self.present.clear()

    def _renewed(self, sent: float) -> None:
        """The node's presence lives on, counted from when the renewal was sent (R27)."""
        self.contact.made(self.clock.mono() - sent)

    async def _known_again(self) -> bool:
        """Whether this agent lost its cluster's id, and the store has an intent that it acted on (R16)."""
        if self.identity.cluster:
            return False
        page = await self.client.list(self.keys.intents(self.config.node), mode="consistent")
        return self.acted_on({self.keys.last_part(raw.key): raw.modify_index for raw in page.items})

    async def _join(self) -> Session:
        cluster = await registration.cluster_id(self.client, self.keys)
        workloads = self.any_workloads(self.identity.cluster)
        if cluster != self.identity.cluster and workloads and not await self._known_again():
            raise ForeignCluster(
                f"the store holds cluster {cluster}, the workloads of {self.config.node} belong to"
                f" {self.identity.cluster or 'an unknown one'}: they are left alone",
                found=cluster,
                expected=self.identity.cluster,
            )
        if not workloads:
            # Before announcing presence: farms place pods on present nodes, and this one could not read them.
            await registration.check_node(self.client, self.keys, self.config.node)
        session = await Session.open(
            self.client,
            self.clock,
            name=f"farmd-agent-{self.config.node}",
            ttl=self.config.session_ttl,
            session_id=await self._resumable(),
            recorder=self.recorder,
            on_renewed=self._renewed,
        )
        resumed = session.id == self.identity.session
        self.recorder.count("farmd_session_events_total", event="resumed" if resumed else "created")
        self._remember(cluster=cluster, session=session.id)
        if workloads:
            await self.look()
        try:
            await self._announce(session.id)
        except NodeTaken:
            await session.destroy()
            raise
        if not workloads:
            await registration.register_node(self.client, self.keys, self.config.node)
        await self._record_node()
        return session

    async def _resumable(self) -> str | None:
        """The former session; None if its presence names another host, which farms would doubt (R21)."""
        session = self.identity.session
        found = await self.client.read(self._key) if session else None
        if found is None or found.session != session:
            return session or None
        try:
            said = codec.decode(Presence, found.value, self._key)
        except RecordInvalid:
            return session
        if presence.host(said.address) == presence.host(self.config.address):
            return session
        await self.client.destroy_session(session)
        return None

    async def _record_node(self) -> None:
        """Create the node's record, unless the agent's token may not; a farm does it then."""
        node = self.keys.node(self.config.node)
        if await self.client.read(node) is None:
            try:
                await self.client.put(node, codec.encode(Node()), cas=0)
            except AccessDenied:
                log.info("agent.record_left_to_farms", node=self.config.node)

    def _remember(self, **fields: str) -> None:
        changed = msgspec.structs.replace(self.identity, **fields)
        if changed != self.identity:
            # First in memory, so that a failure of a later step does not lead to a second session.
            self.identity = changed
            self.state.save_identity(changed)

    async def _announce(self, session: str) -> None:
        said = Presence(
            node=self.config.node,
            version=VERSION,
            labels=labels(self.config.labels),
            capacity=capacity(),
            address=self.config.address,
            host=labels({})["hostname"],
            since=self._since,
            **self._says(),
            **presence.this_process(),
        )
        self._announced = None
        try:
            await presence.announce(self.client, self._key, said, session, clock=self.clock)
        except Conflict as error:
            if "host" not in error.fields:
                raise
            raise NodeTaken(
                f"node {self.config.node}: a running agent already uses this name on host"
                f" {error.fields['host'] or 'unknown'} (pid {error.fields['pid']}); stop it, or give this"
                " agent another node name",
                node=self.config.node,
                **error.fields,
            ) from error
        self._announced = said

    async def _stay(self, session: Session) -> None:
        renewing = asyncio.create_task(session.run())
        looked = self.clock.mono()
        try:
            while not renewing.done():
                await wait(self._doubt, self.clock, session.ttl / 6)
                if (
                    self._doubt.is_set()
                    or self.changed
                    or self.clock.mono() - looked >= presence.LOOK_SECONDS
                ):
                    self._doubt.clear()
                    looked = self.clock.mono()
                    await self._stay_present(session.id)
            await renewing
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        self.recorder.count("farmd_session_events_total", event="lost")

    async def _stay_present(self, session: str) -> None:
        """Announce this agent again when it has news, or when its presence was deleted or overwritten."""
        try:
            if self._announced is None or self.changed:
                await self._announce(session)
            elif not await presence.stands(self.client, self._key, self._announced, session):
                log.warning("agent.presence_lost", node=self.config.node)
                await self._announce(session)
        except StoreError as error:
            self._say(error)
        else:
            self._said = ""

    def _say(self, error: StoreError | AgentError) -> None:
        """Log each kind of error once, not at each attempt."""
        if error.code != self._said:
            self._said = error.code
            log.warning("agent.not_present", node=self.config.node, code=error.code, error=error.message)
