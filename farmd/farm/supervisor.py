"""Runs each worker as a supervised task: the crash of one worker touches no other item (R10).

A crashed worker keeps its item through a backoff, which is recorded in ``work/`` so that later owners honour
it. After ``CRASHES`` in a row the item is blocked with the reason until its record changes. Stopping a worker
waits for its end, so that no write of it can follow.

A farm has a hundred thousand workers, nearly all of them idle. A worker that has nothing to do before it is
woken has no task, which would take most of its memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from farmd.farm.errors import ClaimLost, WorkerEnded
from farmd.farm.kind import Kind, Worker
from farmd.farm.writer import Write, Writer
from farmd.runtime import tasks
from farmd.runtime.wake import Wake
from store import codec
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.errors import StoreError
from store.keys import Keys
from store.locks import Claim
from store.ports import Clock, Recorder, Rng
from store.sessions import Session
from store.status import Status, open_alerts
from store.words import count_of
from store.work import Work

log = structlog.get_logger()

CRASHES = 5
BACKOFF_START = 1.0
BACKOFF_LIMIT = 300.0
STABLE_SECONDS = 60.0
REASON_LIMIT = 300
# Workers that start at once each have a task until their first turn is over.
STARTED_AT_ONCE = 16


def due_in(work: Work, now: float) -> float:
    """Seconds until the item may be tried again; 0 for a time that is too far away to be meant."""
    seconds = work.not_before - now
    return seconds if 0 < seconds <= 2 * BACKOFF_LIMIT else 0.0


@dataclass(slots=True, eq=False)
class _Running:
    """One claim. ``task`` is None while its worker sleeps.

    ``began`` is when the worker began, by the monotonic clock, and ``version`` the record's ModifyIndex then;
    infinite while no worker is at work.
    """

    supervisor: Supervisor
    claim: Claim
    changed: Wake
    crashes: int
    task: asyncio.Task[None] | None = None
    worker: Worker | None = None
    began: float = math.inf
    version: int = 0

    def woken(self) -> None:
        """The worker has something to do again."""
        self.supervisor.resume(self)

    def stopped(self) -> None:
        """The worker, if there is one at work, ended for good."""
        if self.worker is not None and self.began < math.inf:
            self.began = math.inf
            self.worker.stopped()


@dataclass(eq=False)
class Supervisor:
    """Runs the workers of one kind for one session."""

    kind: Kind
    session: Session
    client: ConsulClient
    keys: Keys
    clock: Clock
    rng: Rng
    recorder: Recorder
    farm: str
    on_lost: Callable[[], None]
    _lost: set[str] = field(default_factory=set, init=False)
    _running: dict[str, _Running] = field(default_factory=dict, init=False)
    _waiting: deque[tuple[_Running, Work | None]] = field(default_factory=deque, init=False)
    _starting: bool = field(default=False, init=False)
    _context: contextvars.Context = field(default_factory=contextvars.copy_context, init=False)

    @property
    def owned(self) -> dict[str, Claim]:
        """Claims with a worker, by item."""
        return {item: running.claim for item, running in self._running.items()}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, item: str) -> bool:
        return item in self._running

    def start(self, claim: Claim, work: Work | None = None) -> None:
        """Start the worker of a claim; ``work`` is what an earlier owner recorded."""
        if claim.item in self._running:
            raise RuntimeError(f"{claim.kind}/{claim.item} already has a worker")
        rest = work if work is not None and self._must_wait(claim, work) else None
        running = self._running[claim.item] = _Running(self, claim, Wake(), self._crashes(work))
        self._waiting.append((running, rest))
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        """Start some of the workers that wait for it, and more in the next pass of the loop."""
        for _ in range(min(STARTED_AT_ONCE, len(self._waiting))):
            running, rest = self._waiting.popleft()
            if self._running.get(running.claim.item) is running:
                self.resume(running, rest)
        self._starting = bool(self._waiting)
        if self._starting:
            asyncio.get_running_loop().call_soon(self._start_some)

    def resume(self, running: _Running, rest: Work | None = None) -> None:
        """Give a claim a task, in the context of the farm and not of what woke its worker."""
        work = self._supervise(running, rest)
        running.task = asyncio.create_task(work, name=running.claim.key, context=self._context.copy())

    def record_changed(self, item: str) -> None:
        """Try a blocked item again, because its record changed."""
        if item in self._running:
            self._running[item].changed.set()

    async def stop(self, items: list[str]) -> list[Claim]:
        """Cancel workers and wait for their ends; returns their claims, which are still held.

        A worker whose item no longer exists resolves the item's alerts; otherwise the next owner of the item
        keeps them alive.
        """
        stopped = [self._running.pop(item) for item in items if item in self._running]
        for running in stopped:
            running.changed.park(None)
        await tasks.end(*(running.task for running in stopped if running.task is not None))
        for running in stopped:
            running.stopped()
            if running.worker is None:
                continue
            if running.claim.item not in self.kind.items() and self.kind.trusted():
                await running.worker.gone()
            running.worker.release()
        return [running.claim for running in stopped]

    def halt(self) -> None:
        """Cancel all workers at once; their items stay owned until ``stop`` is called."""
        self._waiting.clear()
        for running in self._running.values():
            running.changed.park(None)
            if running.task is not None:
                running.task.cancel()

    def take_lost(self) -> list[str]:
        """Items whose workers lost their claim since the last call."""
        lost, self._lost = self._lost, set()
        return sorted(lost)

    async def _supervise(self, running: _Running, rest: Work | None) -> None:
        while True:
            try:
                if rest is not None:
                    await self._wait_out(running, rest)
                    await self._kind_barrier(running.claim)
                if running.began == math.inf:
                    self._employ(running)
                assert running.worker is not None
                if not await running.worker.run():
                    raise WorkerEnded("the worker ended by itself")
            except ClaimLost:
                running.stopped()
                self._lost.add(running.claim.item)
                self.on_lost()
                return
            except (Exception, asyncio.CancelledError) as error:  # the worker boundary: nothing is lost here
                lived = self.clock.mono() - running.began
                running.stopped()
                if tasks.cancelled():
                    raise
                rest = await self._crashed(running, error, lived)
            else:
                running.task = None
                running.changed.park(running)
                return

    def _employ(self, running: _Running) -> None:
        """Make the claim a worker, in place of one that crashed."""
        running.version, former = self._version(running.claim), running.worker
        running.worker = self.kind.worker(running.claim, self.session, running.changed)
        running.began = self.clock.mono()
        if former is not None:
            former.release()
        running.worker.started()

    def _version(self, claim: Claim) -> int:
        """ModifyIndex of the item's record; 0 when it is gone."""
        item = self.kind.items().get(claim.item)
        return item.index if item is not None else 0

    def _crashes(self, work: Work | None) -> int:
        """Crashes in a row that an earlier owner recorded; they do not count after ``STABLE_SECONDS`` without
        one.
        """
        if work is None or self.clock.now() - work.not_before > STABLE_SECONDS:
            return 0
        return work.crashes

    def _must_wait(self, claim: Claim, work: Work) -> bool:
        if work.blocked:
            return work.record == self._version(claim)
        return due_in(work, self.clock.now()) > 0

    async def _wait_out(self, running: _Running, work: Work) -> None:
        """Return when the backoff is over or, for a blocked item, when its record changed."""
        if not work.blocked:
            await self.clock.sleep(due_in(work, self.clock.now()))
            return
        log.error("worker.blocked", **running.claim.named(), reason=work.blocked)
        while True:
            running.changed.clear()
            if self._version(running.claim) != work.record:
                break
            await running.changed.wait()
        running.crashes = 0
        await self._record(running.claim, Work())

    async def _kind_barrier(self, claim: Claim) -> None:
        while True:
            try:
                await self.kind.barrier([claim.item])
            except StoreError as error:
                log.warning("worker.barrier_failed", **claim.named(), code=error.code)
                await self.clock.sleep(self.rng.uniform(0.5, 1.5))
            else:
                return

    async def _crashed(self, running: _Running, error: BaseException, lived: float) -> Work:
        """Record the crash of a worker that lived for so many seconds."""
        running.crashes = 1 if lived > STABLE_SECONDS else running.crashes + 1
        delay = min(BACKOFF_LIMIT, BACKOFF_START * 2 ** (running.crashes - 1)) * self.rng.uniform(0.8, 1.2)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_LIMIT]
        work = Work(
            crashes=running.crashes,
            not_before=self.clock.now() + delay,
            blocked=reason if running.crashes >= CRASHES else "",
            record=running.version if running.crashes >= CRASHES else 0,
        )
        self.recorder.count("farmd_cycles_total", kind=running.claim.kind, result="crashed")
        log.error(
            "worker.crashed",
            **running.claim.named(),
            crashes=running.crashes,
            delay_s=round(delay, 1),
            exc_info=error,
        )
        await self._record(running.claim, work)
        return work

    async def _record(self, claim: Claim, crashed: Work) -> None:
        """Write the backoff that later owners must honour; fenced like every write."""
        writer = Writer(claim, self.session, self.client)
        try:
            writes = [await self._state(claim, crashed)]
            if crashed.blocked:
                writes.append(await self._blocked(claim, crashed))
            await writer.commit(*writes)
        except StoreError as error:
            log.warning("worker.state_not_recorded", **claim.named(), code=error.code, error=error.message)
        except Exception:
            log.exception("worker.state_not_recorded", **claim.named())

    async def _blocked(self, claim: Claim, crashed: Work) -> Write:
        """The status of a blocked item; open alerts stay listed."""
        key = self.keys.status(claim.kind, claim.item)
        entry = await self.client.read(key)
        status = Status(
            state="blocked",
            reason=f"crashed {count_of(crashed.crashes, 'time')} in a row; last: {crashed.blocked}",
            farm=self.farm,
            since=self.clock.now(),
            record=crashed.record,
            alerts=open_alerts(entry),
        )
        return Write(key, status, entry.modify_index if entry is not None else 0)

    async def _state(self, claim: Claim, crashed: Work) -> Write:
        """Change the fields about crashes in the item's ``work/`` record; the worker's other fields stay."""
        key = self.keys.work(claim.kind, claim.item)
        entry = await self.client.read(key)
        if entry is None:
            return Write(key, crashed, 0)
        merged = msgspec.structs.replace(
            codec.decode(Work, entry.value, key),
            crashes=crashed.crashes,
            not_before=crashed.not_before,
            blocked=crashed.blocked,
            record=crashed.record,
        )
        empty = codec.rewrite(merged, entry.value) == codec.encode(Work())
        return Write(key, None if empty else merged, entry.modify_index, entry.value)


# Tells the claim loops when a crashed item's backoff ends early (R10).
#
# Workers write to ``work/`` whenever they move a pod or judge a node. If each write woke every claim loop,
# the loops would look through all items of the fleet each time, which costs most of a farm's time with ten
# thousand items. A new backoff wakes no loop, because the item is held. A backoff that is shortened or
# removed wakes the loops, because a farm may claim the item sooner.


class Backoffs:
    """Follows the backoffs in ``work/``; calls ``called_off`` when one ends sooner than it said."""

    def __init__(self, work: PrefixCache[Work], clock: Clock, called_off: Callable[[], None]) -> None:
        self._work = work
        self._clock = clock
        self._called_off = called_off
        self._resting: dict[str, float] = {}
        work.subscribe(self._changed)

    def _changed(self, changed: set[str]) -> None:
        now, sooner = self._clock.now(), False
        for key in changed:
            stored = self._work.get(key)
            until = stored.record.not_before if stored is not None and due_in(stored.record, now) > 0 else 0.0
            sooner = sooner or until < self._resting.pop(key, 0.0)
            if until:
                self._resting[key] = until
        if sooner:
            self._called_off()
