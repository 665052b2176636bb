"""Measures for how long this farm itself sees agents absent; a node is given up by this alone (R21).

Only seen absence counts: while the view is doubtful, late or interrupted nothing is known, and all absences
begin anew once the view is good again. One sweep serves all nodes; it pauses while every agent is present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from farmd.cache.caches import Caches
from farmd.nodes.model import NOTICE_SECONDS
from farmd.observe.progress import Loop
from farmd.runtime.wake import Wake, wait
from store.keys import Keys
from store.ports import Clock
from store.sessions import Session
from store.watch import WAIT_SECONDS

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
