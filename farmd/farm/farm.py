"""The farm: one session at a time, and the round of claiming that runs under it (p2 ``pkg/rc/farm.go``).

A round reads the situation, asks ``plan.decide`` and carries the plan out: release, hand over, take in
batches, adopt. New claims wait for one shared barrier read, then each gets its worker. After a lost session
every worker is cancelled and awaited before a new session is opened (R2). A clean stop destroys the session,
which frees all locks at once (R4). A sign that the store was restored from a snapshot ends the session in the
same way, because nothing that was read or held before counts any more (R15). Several farms share the work
through locks alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from farmd.cache.caches import Caches
from farmd.cache.fleet import FleetIndex
from farmd.failsafe.guard import FailsafeGuard
from farmd.farm.claims import ClaimLoop
from farmd.farm.errors import TRANSIENT, AnotherCluster
from farmd.farm.kind import Kind
from farmd.farm.locking import LockTree
from farmd.farm.members import Features, Membership
from farmd.farm.plan import FarmSettings
from farmd.farm.supervisor import Backoffs
from farmd.observe.progress import Progress
from farmd.runtime import tasks
from farmd.runtime.wake import wait, within
from store import operations, registration
from store.consul.client import ConsulClient
from store.errors import (
    NotRegistered,
    StoreError,
)
from store.farms import Member
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock, Ids, Recorder, Rng
from store.sessions import JOINING, Session
from store.words import listed

log = structlog.get_logger()

STALL_SECONDS = 180.0
PAUSE_START, PAUSE_LIMIT = 1.0, 30.0
# A server that ends all waits early looks like one that is restored again and again.
BEGIN_ANEW_SECONDS = 10.0
UNREAD_SECONDS = 30.0
FOREIGN_SECONDS = 30.0


@dataclass(eq=False, kw_only=True)
class Farm:
    """Claims items of several kinds and runs one worker for each (seed ``Farm``).

    ``run`` returns when ``stop`` is set, with every lock free. ``ready`` is set while the farm holds a
    session and its caches are filled.
    """

    settings: FarmSettings
    features: Features
    member: Member
    client: ConsulClient
    keys: Keys
    caches: Caches
    fleet: FleetIndex
    kinds: Sequence[Kind]
    guards: Mapping[str, FailsafeGuard]
    clock: Clock
    rng: Rng
    ids: Ids
    recorder: Recorder
    progress: Progress
    _began_anew: float = field(default=float("-inf"), init=False)
    _trouble: str = field(default="", init=False)
    _session: Session | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._membership = Membership(
            self.member, self.features, self.client, self.keys, self.caches, self.clock
        )
        self._pause_seconds = PAUSE_START
        self.ready = asyncio.Event()
        self.loops: list[ClaimLoop] = []
        # Subscribed once and not once for each session: caches have no way to unsubscribe.
        for kind in self.kinds:
            kind.subscribe(partial(self._records_changed, kind.name))
        self.caches.farms.subscribe(lambda _: self._claiming_changed())
        self.features.watch(self._claiming_changed)
        Backoffs(self.caches.work, self.clock, self._claiming_changed)

    def _records_changed(self, kind: str, items: set[str], matters: bool) -> None:
        for loop in self.loops:
            if loop.kind.name == kind:
                loop.records_changed(items, matters)

    def _claiming_changed(self) -> None:
        for loop in self.loops:
            loop.wake()

    def _resumed(self) -> None:
        """Cancel all workers, because what they have read is too old; the next round restarts them (R15)."""
        for loop in self.loops:
            loop.supervisor.halt()
            loop.wake()

    def lacks(self) -> str:
        """What this farm waits for before it is ready, for people; empty: it is."""
        if self.ready.is_set():
            assert self._session is not None
            return self._session.lacks()
        if self._trouble:
            return f"waiting for Consul: {self._trouble}"
        unread = self.caches.unread()
        return f"waiting for the first read of {listed(unread, 3)}" if unread else JOINING

    def fence(self) -> list[Operation] | None:
        """The checks of a write that rests on this farm's session alone; None while it is not in force."""
        if self._session is None or not self._session.valid():
            return None
        return [operations.check_session(self.keys.farm(self.member.id), self._session.id)]

    def silent_since(self) -> float:
        """Since when Consul has renewed no session of this farm, in seconds since the epoch; 0: it does.

        What the caches hold may be as old as that.
        """
        if self._session is None or self._session.valid():
            return 0.0
        return self.clock.now() - (self.clock.mono() - self._session.heard)

    def publish(self) -> None:
        """Write the metrics that only a scrape needs: ages of trees, owned items, and those of kinds."""
        self.caches.publish(self.recorder)
        for kind in self.kinds:
            owned = sum(len(loop.supervisor) for loop in self.loops if loop.kind is kind)
            self.recorder.set("farmd_owned", owned, kind=kind.name)
            kind.publish(self.recorder)

    async def start(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set (p2 ``Farm.Start``, which blocks as well).

        Raises:
            Conflict: another live farm bears this name.
            SchemaTooNew: the cluster does not allow this version.
            AnotherCluster: the store has another cluster, and this farm's had nothing.
        """
        background = [asyncio.create_task(self.caches.run(), name="caches")]
        background += [asyncio.create_task(guard.run(), name="failsafe") for guard in self.guards.values()]
        for kind in self.kinds:
            background += [
                asyncio.create_task(run, name=f"{kind.name}-background") for run in kind.background()
            ]
        sessions = asyncio.create_task(self._sessions(stop), name="sessions")
        try:
            done, _ = await asyncio.wait([sessions, *background], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await tasks.end(sessions, *background)

    async def _sessions(self, stop: asyncio.Event) -> None:
        """Run one session after the other; the next begins only when everything of the last has ended."""
        while not stop.is_set():
            if self.caches.restored.is_set():
                await self._begin_anew()
            try:
                await self._same_cluster()
                session = await Session.open(
                    self.client,
                    self.clock,
                    name=f"farmd farm {self.settings.name}",
                    ttl=self.settings.ttl,
                    recorder=self.recorder,
                    on_resume=self._resumed,
                )
            except StoreError as error:
                log.warning("session.not_opened", code=error.code, error=error.message)
                self._trouble = error.message
                await self._pause(stop)
                continue
            self._trouble, self._session = "", session
            self.recorder.count("farmd_session_events_total", event="created")
            try:
                await self._served(session, stop)
            except TRANSIENT as error:
                log.warning("farm.interrupted", code=error.code, error=error.message)
                self._trouble = error.message
                await self._pause(stop)

    async def _begin_anew(self) -> None:
        log.warning("farm.begins_anew", reason="the store was restored from a snapshot")
        self._began_anew = self.clock.mono()
        await self.caches.begin_anew()

    async def _restored(self) -> None:
        """Return when the store was restored, at most once in ``BEGIN_ANEW_SECONDS``."""
        await self.caches.restored.wait()
        await self.clock.sleep(max(0.0, self._began_anew + BEGIN_ANEW_SECONDS - self.clock.mono()))

    async def _pause(self, stop: asyncio.Event) -> None:
        """Wait before the next attempt, twice as long each time until the farm is ready once more."""
        await wait(stop, self.clock, self._pause_seconds * self.rng.uniform(0.5, 1.5))
        self._pause_seconds = min(2 * self._pause_seconds, PAUSE_LIMIT)

    async def _served(self, session: Session, stop: asyncio.Event) -> None:
        try:
            await self._serve(session, stop)
        finally:
            self.ready.clear()
            await self._give_up(session)

    async def _give_up(self, session: Session) -> None:
        if session.lost.is_set():
            self.recorder.count("farmd_session_events_total", event="lost")
            return
        try:
            await session.destroy()
        except StoreError as error:
            log.warning("session.not_destroyed", code=error.code, error=error.message)
        else:
            self.recorder.count("farmd_session_events_total", event="destroyed")

    async def _serve(self, session: Session, stop: asyncio.Event) -> None:
        renewal = asyncio.create_task(session.run(), name="renewal")
        work = asyncio.create_task(self._work(session), name="work")
        ends = [asyncio.create_task(end) for end in (stop.wait(), self._restored())]
        try:
            await asyncio.wait([renewal, work, *ends], return_when=asyncio.FIRST_COMPLETED)
            over = work.done() or renewal.done() or not stop.is_set()
            if not over and self.settings.drain and self.ready.is_set():
                await self._drain(session, renewal, work)
            for task in (work, renewal):
                if task.done():
                    task.result()
        finally:
            # Workers end before renewal does, because they may still finish a write.
            await tasks.end(work)
            await tasks.end(renewal, *ends)

    async def _drain(self, session: Session, *ends: asyncio.Task[None]) -> None:
        """Hand over without a gap what other farms may have, for as long as the settings allow (R9)."""
        log.info("farm.draining", farm=self.member.id, seconds=self.settings.drain)
        drained = [asyncio.create_task(self._handed_over(session), name="drain")]
        drained += [asyncio.create_task(self.clock.sleep(self.settings.drain))]
        try:
            done, _ = await asyncio.wait([*drained, *ends], return_when=asyncio.FIRST_COMPLETED)
            for task in done.difference(ends):
                task.result()
        finally:
            await tasks.end(*drained)
        left = sum(len(loop.supervisor) for loop in self.loops)
        log.info("farm.drained", farm=self.member.id, left=left)

    async def _handed_over(self, session: Session) -> None:
        try:
            await self._membership.announce(session, draining=True)
        except StoreError as error:
            log.warning("farm.not_drained", code=error.code, error=error.message)
            return
        for loop in self.loops:
            loop.drain()
        await asyncio.gather(*(loop.drained.wait() for loop in self.loops))

    async def _work(self, session: Session) -> None:
        """Announce this farm and run one claim loop for each kind."""
        schema = await registration.read_schema(self.client, self.keys)
        if self.caches.unread():
            # Others count this farm, and hand it nothing that nobody would work on meanwhile (R9).
            await self._membership.announce(session, starting=True)
            await self._filled()
        await self._membership.announce(session)
        with self.progress.loop("watch", STALL_SECONDS) as watching:
            restored, leadership = self.caches.restored.set, self.caches.leadership
            locks = LockTree(self.client, self.keys, self.clock, self.rng, watching, restored, leadership)
            begin = asyncio.Event()
            self.loops = [self._loop(kind, session, schema.modify_index, locks, begin) for kind in self.kinds]
            self.ready.set()
            self._pause_seconds = PAUSE_START
            log.info("farm.ready", farm=self.member.id)
            work = [locks.run(), self._membership.stay(session), self._settle(begin), self._foreign()]
            work += [loop.run() for loop in self.loops]
            await tasks.until_one_fails(work)

    async def _filled(self) -> None:
        """Wait until all trees were read, and log from time to time which were not."""
        while self.caches.unread():
            await within(self.caches.filled(), self.clock, UNREAD_SECONDS)
            if unread := self.caches.unread():
                log.warning("farm.not_ready", farm=self.member.id, unread=unread)

    async def _settle(self, begin: asyncio.Event) -> None:
        """Wait for the peers that start at the same time, then let all kinds claim."""
        await self.clock.sleep(self.settings.settle)
        begin.set()

    async def _foreign(self) -> None:
        """Look whether the store has another cluster while what is read bears another one's sentinels."""
        while True:
            await self.clock.sleep(FOREIGN_SECONDS)
            if self.caches.doubted() and not self.caches.owned():
                await self._same_cluster()

    async def _same_cluster(self) -> None:
        """Check that the cluster is the one whose copy this farm holds (R20).

        Raises:
            NotRegistered: the store was wiped, and perhaps registered anew, since this farm was started.
            AnotherCluster: the same, and this farm knows no pod and no owner of its cluster: it was started
                in a wiped store whose data are back, or is new. It removes nothing and keeps no alarm.
        """
        found = await registration.cluster_id(self.client, self.keys)
        if found != self.caches.cluster:
            if not self.caches.owned():
                raise AnotherCluster(found)
            raise NotRegistered(
                f"{self.keys.cluster}: found {found}, expected {self.caches.cluster}: another cluster,"
                " restart this farm if it shall join it",
                key=self.keys.cluster,
            )

    def _loop(
        self, kind: Kind, session: Session, schema: int, locks: LockTree, begin: asyncio.Event
    ) -> ClaimLoop:
        return ClaimLoop(
            kind=kind,
            session=session,
            schema=schema,
            settings=self.settings,
            features=self.features,
            client=self.client,
            keys=self.keys,
            caches=self.caches,
            locks=locks,
            clock=self.clock,
            rng=self.rng,
            ids=self.ids,
            recorder=self.recorder,
            beat=self.progress.loop("claims", STALL_SECONDS),
            begin=begin,
        )
