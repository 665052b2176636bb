"""Nodes without machines: agents that obey intents on virtual time, slowly or not at all if told so."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import msgspec

from farmd.agent.health import Spell
from store import codec, registration
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import RecordInvalid, SessionGone
from store.keys import Keys, is_sentinel
from store.manifests import Restart
from store.nodes import Agent
from store.ports import Clock
from store.reality import Exit, Health, HealthState, Intent, Phase, Reality, ending

TTL = 10.0
RENEW_SECONDS = 4.0
CRASH_SECONDS = 0.5
RESTART_SECONDS = 1.0


class SimulatedAgent:
    """One node's agent. ``delay`` (seconds) is how long a pod takes to start, ``sick`` are instances that
    fail their check. ``lives``: after how many seconds each start of a manifest fails, by digest. ``ends``:
    with which code the only start of a manifest ends for good. ``refuses``: manifests that it does not start.
    ``starts`` counts the starts of each manifest.
    ``skew``: how many seconds its wall clock is ahead of everybody else's."""

    def __init__(self, node: str, client: ConsulClient, keys: Keys, clock: Clock) -> None:
        self.node = node
        self.delay = 0.2
        self.sick: set[str] = set()
        self.lives: dict[str, float] = {}
        self.ends: dict[str, int] = {}
        self.refuses: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.skew = 0.0
        self._client = client
        self._keys = keys
        self._clock = clock
        self._session = ""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._runs: dict[str, Reality] = {}
        self._spells: dict[tuple[str, float], Spell] = {}

    @property
    def alive(self) -> bool:
        return self._task is not None

    @property
    def failure(self) -> BaseException | None:
        """Why it ended by itself, which no agent here should."""
        return self._task.exception() if self._task is not None and self._task.done() else None

    def started(self, instance: str) -> float:
        """When what runs there was started."""
        return self._runs[instance].started

    def _now(self) -> float:
        return self._clock.now() + self.skew

    async def register(self) -> None:
        await registration.register_node(self._client, self._keys, self.node)

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"agent-{self.node}")

    async def die(self, *, at_once: bool) -> None:
        """The process ends; its presence goes with its session, ``at_once`` or when that expires."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if at_once and self._session:
            await self._client.destroy_session(self._session)
            self._session = ""

    def ail(self, instance: str, sick: bool) -> None:
        """An instance fails its check from now on, or passes it again."""
        (self.sick.add if sick else self.sick.discard)(instance)
        self._changed.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_present())
            tasks.create_task(self._obey())
            tasks.create_task(self._check())
            tasks.create_task(self._crash())

    async def _stay_present(self) -> None:
        while True:
            try:
                if not self._session:
                    raise SessionGone("none yet")
                await self._client.renew_session(self._session)
            except SessionGone:
                self._session = await self._client.create_session(name=self.node, ttl=TTL)
                value = codec.encode(
                    Agent(node=self.node, version="test", features=["process", "runtime.container"])
                )
                while not await self._client.put(self._keys.agent(self.node), value, acquire=self._session):
                    await self._clock.sleep(1.0)
            await self._clock.sleep(RENEW_SECONDS)

    async def _obey(self) -> None:
        index, prefix = 0, self._keys.intents(self.node)
        while True:
            page = await self._client.list(prefix, index=index, wait=55.0)
            index = page.index
            if not any(is_sentinel(raw.key) for raw in page.items):
                continue  # no evidence of anything (R20)
            entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
            wanted: dict[str, tuple[Intent, int]] = {}
            kept = set[str]()
            for entry in entries:
                instance = self._keys.last_part(entry.key)
                try:
                    wanted[instance] = codec.decode(Intent, entry.value, entry.key), entry.modify_index
                except RecordInvalid:
                    kept.add(instance)
            await self._follow(wanted, kept)

    async def _follow(self, wanted: dict[str, tuple[Intent, int]], kept: set[str]) -> None:
        started = []
        for instance in sorted(self._runs.keys() - wanted.keys() - kept):
            del self._runs[instance]
            await self._client.delete(self._keys.reality(self.node, instance))
        for instance, (intent, index) in sorted(wanted.items()):
            known = self._runs.get(instance)
            if known is not None and known.intent == index:
                if known.phase == "starting" and not known.refused:
                    started.append(instance)  # it died while it waited for that
                continue
            now = self._now()
            starting = Reality(
                manifest=intent.manifest,
                owner=intent.owner,
                phase="starting",
                started=now,
                intent=index,
                restart=intent.restart,
                health=Health("unknown", now),
            )
            same = known is not None and (known.manifest, known.owner) == (intent.manifest, intent.owner)
            if known is not None and same and intent.restart <= known.restart:
                # A rewritten intent restarts nothing, unless its counter has risen (R28).
                said = msgspec.structs.replace(known, intent=index, restart=intent.restart)
                await self._say(instance, said)
                continue
            if intent.manifest in self.refuses:
                reason = "its image cannot be pulled"
                await self._say(instance, msgspec.structs.replace(starting, refused=index, reason=reason))
                continue
            await self._say(instance, starting)
            self.starts[intent.manifest] += 1
            started.append(instance)
        if started:
            await self._clock.sleep(self.delay)
        for instance in started:
            await self._judge(instance)

    async def _check(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for instance in sorted(self._runs):
                known = self._runs.get(instance)  # it may have gone while another was judged
                if known is not None and known.phase == "running":
                    await self._judge(instance)

    async def _crash(self) -> None:
        """End what lives no longer, and start it again after a pause, as the real agent does."""
        while True:
            await self._clock.sleep(CRASH_SECONDS)
            for instance, known in sorted(self._runs.items()):
                now, lives = self._now(), self.lives.get(known.manifest, math.inf)
                if known.phase == "running" and known.manifest in self.ends:
                    await self._end(instance, self.ends[known.manifest], now)
                elif known.phase == "backoff" and now >= known.health.since + RESTART_SECONDS:
                    await self._end_or_start(instance, "running", now, Health("passing", now))
                elif known.phase == "running" and now >= known.started + lives:
                    await self._end_or_start(instance, "backoff", 0.0, Health(since=now))

    async def _end(self, instance: str, code: int, now: float) -> None:
        health = Health("critical" if code else "passing", now, ending(code))
        said = msgspec.structs.replace(
            self._runs[instance], phase="done", exits=[Exit(now, code)], health=health
        )
        await self._say(instance, said)

    async def _end_or_start(self, instance: str, phase: Phase, started: float, health: Health) -> None:
        known = self._runs[instance]
        again = known.restarts + (phase == "running")
        said = msgspec.structs.replace(known, phase=phase, started=started, health=health, restarts=again)
        await self._say(instance, said)

    async def _judge(self, instance: str) -> None:
        """Say whether an instance passes its check, if that is news."""
        known = self._runs.get(instance)
        state: HealthState = "critical" if instance in self.sick else "passing"
        if known is not None and (known.phase != "running" or known.health.state != state):
            spell = self._spells.setdefault((instance, known.started), Spell(known.health))
            now, mono = self._now(), self._clock.mono()
            health = Health(state, spell.turned(state, now=now, mono=mono, settle=Restart().reset))
            await self._say(instance, msgspec.structs.replace(known, phase="running", health=health))

    async def _say(self, instance: str, reality: Reality) -> None:
        self._runs[instance] = reality
        await self._client.put(self._keys.reality(self.node, instance), codec.encode(reality))
