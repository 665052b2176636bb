"""The one loop of every kind of work: wake, read, decide, act, report, sleep (p2 ``WatchDesires``).

The worker of an item reads the whole state in each cycle, never the event that woke it. It ends by
cancellation, when its claim is lost, or by an error that is not the store's or the scheduler's; such an error
is a crash, which the supervisor handles (R10). A kind overrides ``read``, ``decide``, ``answer``, ``act`` and
``describe``; the other methods are hooks with a default. An idle item owns no timer (R23a), and little
memory: while it sleeps, only the frames of ``run`` and ``wait``.

After a turn that took much CPU time the worker rests, so that an item of thousands of pods does not take a
whole core while its agents report. What agents report and others reserve does not end a rest, nor does time;
a change of the record does.

What is refused outside of Consul is tried again after a pause that grows to some 75 s, whatever wakes the
worker, and at once where the plan is another one (``refusals.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from farmd.runtime.metered import metered
from farmd.runtime.wake import Wake, wait
from farmd.work.item import ClaimedItem
from farmd.work.kind import Kind
from farmd.work.model import Ask, Outcome, Plan
from farmd.work.refusals import LONGEST_REASON, Refusal, again
from scheduler.errors import SchedulerError
from store.errors import (
    AccessDenied,
    InputInvalid,
    NotFound,
    RecordInvalid,
    SessionSuspended,
    StoreError,
    TooLarge,
    TransactionRejected,
)
from store.locks import Claim
from store.sessions import Session
from store.status import ItemStatus

log = structlog.get_logger()

S = TypeVar("S")
P = TypeVar("P", bound=Plan)

BACKOFF_START = 0.5
BACKOFF_LIMIT = 60.0
# Others are faster now and then; four times in a row is worth a warning.
REJECTED_TOLD = 4.0
# Deadlines are times of the wall clock, waits are of the monotonic one.
TIMER_SLACK = 0.05
# A rest in the CPU time of the turn before: an item takes a fifth of a core at most.
REST = 4.0
REST_LIMIT = 1.0
# Turns of small items are not worth a timer.
REST_LEAST = 0.01
# Errors that waiting does not mend: the status names them, and the cycle is still retried.
FOR_PEOPLE = (AccessDenied, TooLarge, SchedulerError, NotFound, RecordInvalid, InputInvalid)


class Worker(ClaimedItem, ABC, Generic[S, P]):
    """Keeps one item as its record says while its claim lasts; each cycle clears its ``wake`` first."""

    __slots__ = ("_backoff", "refusal")

    BACKOFF: ClassVar[tuple[float, float]] = (BACKOFF_START, BACKOFF_LIMIT)
    TOLD: ClassVar[tuple[type[Exception], ...]] = FOR_PEOPLE

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self._backoff = self.BACKOFF[0]
        # What was refused outside of Consul, until it is done or not planned any more.
        self.refusal: Refusal | None = None

    # -- what a kind says ------------------------------------------------------------------------
    @abstractmethod
    async def read(self) -> S | Outcome:
        """The snapshot: the item and everything that its plan rests on. An outcome if there is nothing to
        plan.
        """

    @abstractmethod
    def decide(self, snapshot: S) -> P | Ask[Any]:
        """The kind's pure decision, or a request for the fact that it lacks."""

    @abstractmethod
    async def act(self, snapshot: S, plan: P) -> Outcome:
        """Write what a plan changes. ``rejected`` without a time: read and plan again after a jittered
        wait.
        """

    @abstractmethod
    def describe(self, snapshot: S, plan: P) -> ItemStatus | None:
        """The status; None: the item needs none."""

    async def alert(self, snapshot: S, plan: P) -> float | None:
        """Fire and resolve the item's alerts (``self.status.incidents``); the seconds until time alone makes
        another one due.
        """
        return None

    async def answer(self, snapshot: S, ask: Ask[Any]) -> S:
        """The snapshot with the fact that ``decide`` asked for; a kind that never asks has none."""
        raise NotImplementedError(f"{type(self).__name__} answers nothing, asked for {ask.need!r}")

    def attach(self) -> None:
        """Called at the start: have ``wake`` set by what concerns the item besides its record."""

    def detach(self) -> None:
        """Called at the end."""

    def decided(self, snapshot: S, plan: P) -> None:
        """Called for each plan: note what the item waits for."""

    async def reread(self) -> None:
        """Read the input of plans again, after a write whose outcome is unknown (R12)."""

    # -- the loop --------------------------------------------------------------------------------
    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        try:
            self._attach()
            while True:
                # Nothing but the pause is kept while the worker sleeps.
                await wait(self.wake, self.context.clock, await self._turn_and_rest())
        finally:
            self._detach()

    async def _turn_and_rest(self) -> float | None:
        """One cycle, and the rest after a costly one; the seconds until the next is due."""
        outcome, spent = await metered(self._turn(), self.context.cpu)
        rest = min(REST * spent, REST_LIMIT)
        if rest < REST_LEAST:
            return outcome.after
        await self.wake.rest(self.context.clock, rest)
        return None if outcome.after is None else max(0.0, outcome.after - rest)

    async def watch_desires(self) -> AsyncIterator[Outcome]:
        """``run`` for whoever wants the outcome of each cycle (seed ``WatchDesires``)."""
        try:
            self._attach()
            while True:
                outcome = await self._turn()
                yield outcome
                await wait(self.wake, self.context.clock, outcome.after)
        finally:
            self._detach()

    def _attach(self) -> None:
        self.attach()
        self.kind.sweep.attach(self.claim.item, self)

    def _detach(self) -> None:
        item = self.claim.item
        self.kind.sweep.detach(item)
        self.detach()
        self.kind.block(item, False)
        self.kind.hold_back(item, None)

    async def _turn(self) -> Outcome:
        """One cycle, as soon as the limiter lets it begin."""
        context, name = self.context, self.kind.name
        await context.limiter.turn()
        self.wake.clear()
        started = context.clock.mono()
        outcome = await self._guarded()
        context.recorder.observe("farmd_cycle_duration_seconds", context.clock.mono() - started, kind=name)
        context.recorder.count("farmd_cycles_total", kind=name, result=outcome.result)
        self.kind.block(self.claim.item, outcome.result in ("blocked", "frozen"))
        return outcome

    async def _guarded(self) -> Outcome:
        """One cycle; after a refusal of the store it is retried with backoff and jitter."""
        try:
            outcome = await self.cycle()
        except TransactionRejected as error:
            outcome = Outcome("rejected", None, error.message)
        except (StoreError, SchedulerError) as error:
            return await self._failed(error)
        if outcome.result != "rejected":
            if self.refusal is None:
                self._backoff = self.BACKOFF[0]
        elif outcome.after is None:
            # Somebody else was faster: read again after a jittered wait, which grows each time in a row.
            pause = self._grown()
            delay = self.context.rng.uniform(0.0, pause)
            tell = log.warning if pause >= REJECTED_TOLD else log.debug
            tell("cycle.rejected", **self.claim.named(), reason=outcome.reason, after_s=delay)
            return Outcome("rejected", delay, outcome.reason)
        return outcome

    async def cycle(self) -> Outcome:
        """Read, decide, and act or report."""
        if self.writer.unsettled:
            await self.reread()
            self.writer.unsettled = False
        found = await self.read()
        if isinstance(found, Outcome):
            return found
        snapshot, decision = found, self.decide(found)
        while isinstance(decision, Ask):
            snapshot = await self.answer(snapshot, decision)
            decision = self.decide(snapshot)
        self.decided(snapshot, decision)
        waits = decision.blocked is not None and decision.blocked.frozen
        self.kind.hold_back(self.claim.item, self.wake if waits else None)
        if not decision.empty:
            outcome = await self.act(snapshot, decision)
            if outcome.result in ("done", "after"):
                self.refusal = None
            return outcome
        self.refusal = None
        # There is nothing to change, so now there is time to report.
        due = [await self.alert(snapshot, decision), await self.report(snapshot, decision)]
        if decision.after is not None:
            due.append(max(0.0, decision.after) + TIMER_SLACK)
        after = min((at for at in due if at is not None), default=None)
        if (blocked := decision.blocked) is not None and not blocked.wanted:
            return Outcome("frozen" if blocked.frozen else "blocked", after, blocked.text)
        return Outcome("done" if after is None else "after", after)

    async def report(self, snapshot: S, plan: P) -> float | None:
        """Write the item's status if it changed; the seconds to wait when it is too early."""
        return await self.status.write(self.describe(snapshot, plan), self.index, self.stands())

    # -- what is refused outside of Consul -------------------------------------------------------
    def resting(self, what: object) -> Outcome | None:
        """How a cycle ends that may not try this again yet; None: it may."""
        now = self.context.clock.mono()
        if self.refusal is None or self.refusal.rests(what, now) <= 0:
            return None
        return self.refusal.outcome(now)

    def repeats(self, what: object) -> bool:
        """Whether the audit tells of this already, because it was tried before and nothing came of it."""
        return self.refusal is not None and self.refusal.what == what

    async def count_refusal(
        self, what: object, text: str, *, noun: str, name: str, least: float = 0.0
    ) -> Outcome:
        """Count a try that was refused; it rests for ``least`` seconds or longer, then it is repeated.

        Raises:
            StoreError: the audit could not be told of it.
        """
        pause = max(least, self._grown() * self.context.rng.uniform(0.75, 1.25))
        refusal = self.note_refusal(what, text, pause)
        if refusal.counted:
            told = self.audit(f"{noun}.refused", text[:LONGEST_REASON], after=refusal.counts(), name=name)
            self.refusal, written = refusal.recorded(told)
            await self.writer.commit(written)
        return refusal.outcome(self.context.clock.mono())

    def note_refusal(self, what: object, text: str, pause: float) -> Refusal:
        """Let the same rest for so long; its next try needs no audit record of its own."""
        clock = self.context.clock
        self.refusal = again(self.refusal, what, text, clock.now(), clock.mono() + pause)
        return self.refusal

    async def _failed(self, error: StoreError | SchedulerError) -> Outcome:
        delay = self._grown() * self.context.rng.uniform(0.75, 1.25)
        if isinstance(error, SessionSuspended):
            delay = min(delay, 1.0)
        named = self.claim.named()
        log.warning("cycle.failed", **named, error_code=error.code, error=str(error), after_s=delay)
        if not isinstance(error, self.TOLD):
            return Outcome("backoff", delay, error.code)
        await self.block(f"{error.code}: {error}")
        return Outcome("blocked", delay, error.code)

    def _grown(self) -> float:
        """The present pause; the next one is twice as long."""
        pause, self._backoff = self._backoff, min(self._backoff * 2, self.BACKOFF[1])
        return pause
