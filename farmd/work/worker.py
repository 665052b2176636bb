"""The one loop of every kind of work: wake, read, decide, act, report, sleep (p2 ``WatchDesires``).

The worker of an item reads the whole state in each cycle, never the event that woke it. It ends by
cancellation, when its claim is lost, or by an error that is not the store's or the scheduler's; such an error
is a crash, which the supervisor handles (R10). A kind overrides ``read``, ``decide``, ``answer``, ``act`` and
``describe``; the other methods are hooks with a default. An idle item owns no timer (R23a), and little
memory: it has no task until it is woken.

After a turn that took much CPU time the worker rests, so that an item of thousands of pods does not take a
whole core while its agents report. What agents report and others reserve does not end a rest, nor does time;
a change of the record does.

What is refused outside of Consul is tried again after a pause that grows to some 75 s, whatever wakes the
worker, and at once where the plan is another one (``refusals.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import structlog

from farmd import kinds
from farmd.farm.writer import Writer
from farmd.runtime.tasks import metered
from farmd.runtime.wake import Wake, wait
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.model import Ask, Outcome, Plan
from farmd.work.status import STATUS_RETRY, StatusWriter
from scheduler.errors import SchedulerError
from store import operations
from store.audit import Audit
from store.cache import PrefixCache
from store.entry import Entry, Stored
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
from store.operations import Operation
from store.sessions import Session
from store.status import ItemStatus
from store.times import rfc3339

# One item of a kind of work, as its worker has it: its record, its status, its audit records.
#
# A farm owns ten thousand items, so an item keeps no attribute that its claim implies.

log = structlog.get_logger()

Fields = dict[str, int | str | bool]
R = TypeVar("R")


class ClaimedItem:
    """An item while its claim lasts. ``wake`` is set by every change that concerns it."""

    __slots__ = ("claim", "index", "kind", "status", "wake", "writer")

    def __init__(self, kind: Kind, claim: Claim, session: Session, wake: Wake) -> None:
        context = kind.context
        self.kind = kind
        self.claim = claim
        self.wake = wake
        self.writer = Writer(claim, session, context.client)
        known = kind.recollection.take(claim.item)
        self.status = StatusWriter(context, kind.status, known, self.writer, self)
        # ModifyIndex of the record that was read last, decoded or not; 0: there is none.
        self.index = 0

    @property
    def context(self) -> Context:
        """The farm's parts."""
        return self.kind.context

    @property
    def key(self) -> str:
        """The key of the item's record."""
        return self.context.keys.record(self.kind.name, self.claim.item)

    def labels(self) -> dict[str, str]:
        """The labels by which its alerts are routed: those of its record, and ``kind``, its kind of work."""
        item = self.kind.items().get(self.claim.item)
        return {**({} if item is None else item.labels), "kind": self.kind.name}

    def called(self) -> str:
        """The item's name, as people use it."""
        known = self.status.known
        return known.name if known is not None and known.name else self.claim.item

    def title(self) -> str:
        """The item as its alerts name it: ``rc/web``."""
        return kinds.title(self.kind.name, self.called())

    def path(self) -> str:
        """Where the page shows the item; empty: nowhere."""
        return kinds.path(self.kind.name, self.called())

    def stands(self) -> Sequence[Operation]:
        """Checks that the record is still the version that was read."""
        check = operations.check_index(self.key, self.index) if self.index else None
        return (check or operations.check_not_exists(self.key),)

    def obstructed(self, reason: str) -> ItemStatus:
        """The status of an item that cannot be worked on; how far it was stays known."""
        known = self.status.known
        if isinstance(known, self.kind.status) and known.underway:
            return msgspec.structs.replace(known, state="blocked", reason=reason)
        return self.kind.status(state="blocked", reason=reason)

    def stored(self, tree: PrefixCache[R]) -> Stored[R] | RecordInvalid | None:
        """The item's record in a cached tree, the error of one that does not decode, or None."""
        if (broken := tree.broken.get(self.key)) is not None:
            self.index = int(broken.fields.get("index", 0))
            return broken
        stored = tree.get(self.key)
        self.index = stored.index if stored is not None else 0
        return stored

    async def unreadable(self, error: RecordInvalid, what: str) -> Outcome:
        """Report that a record under the plan does not decode; nothing of the item is touched (R10)."""
        return Outcome("blocked", await self.block(error.message), f"{what} does not decode")

    async def gone(self) -> Outcome:
        """Resolve the item's alerts, because its record is gone."""
        await self.status.incidents.end_all()
        return Outcome("blocked", None, "the record is gone")

    def release(self) -> None:
        """Keep the item's alerts alive no more, because this worker ended."""
        self.status.incidents.release()

    def audit(
        self,
        action: str,
        reason: str,
        *,
        before: Fields | None = None,
        after: Fields | None = None,
        name: str = "",
    ) -> Operation:
        """The write of an audit record of this item; ``name`` is the name that people use, if not the id."""
        context, item = self.context, self.claim.item
        record = Audit(
            at=context.audit.now(),
            actor=context.actor,
            action=action,
            kind=self.kind.name,
            id=item,
            name=name or item,
            reason=reason,
            before=before or {},
            after=after or {},
        )
        return context.audit.operation(record)

    async def block(self, reason: str) -> float | None:
        """Report why the item cannot be worked on; returns when to try again if that was too early."""
        told = msgspec.structs.replace(
            self.obstructed(reason), farm=self.context.farm, since=self.context.clock.now()
        )
        try:
            return await self.status.write(told, self.index, self.stands())
        except StoreError as error:
            log.debug("status.not_written", **self.claim.named(), code=error.code)
            return STATUS_RETRY

    def look_at_status(self, entry: Entry | None) -> None:
        """Write the status again if somebody deleted or changed the stored one."""
        if self.status.differs(entry):
            self.wake.set()


# Writes outside of Consul that were refused: when the same may be tried again, and one record of all tries.
#
# What must never break: events do not cut a rest short, because most of them follow from the try itself,
# while another plan is tried at once; and the audit log of an item that is refused for days stays as small
# as that of one that was refused twice an hour.

LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A plan that was refused, and how many tries in a row were since ``first``.

    ``until`` is on the monotonic clock. ``record`` is the key of the audit record that counts the tries;
    empty: none does yet.
    """

    what: object
    text: str
    first: float
    last: float
    until: float
    many: int = 1
    record: str = ""

    def rests(self, what: object, now: float) -> float:
        """Seconds for which this is not tried again."""
        return max(0.0, self.until - now) if self.what == what else 0.0

    def outcome(self, now: float) -> Outcome:
        """How a cycle ends that waits for the next try."""
        return Outcome("blocked", max(0.0, self.until - now), self.text)

    @property
    def counted(self) -> bool:
        """Whether this try is written down: the first, the second, the fourth and so on are."""
        return self.many & (self.many - 1) == 0

    def counts(self) -> dict[str, int | str | bool]:
        """The numbers about tries for the audit."""
        return {"tries": self.many, "first": rfc3339(self.first), "last": rfc3339(self.last)}

    def recorded(self, told: Operation) -> tuple[Refusal, Operation]:
        """The write of an audit record, in place of the one before it unless that is of another hour."""
        same_hour = self.record.rpartition("/")[0] == told.key.rpartition("/")[0]
        written = operations.put(self.record, told.value) if same_hour else told
        return replace(self, record=written.key), written


def again(before: Refusal | None, what: object, text: str, now: float, until: float) -> Refusal:
    """One more try that was refused, after those before it in a row."""
    if before is None:
        return Refusal(what=what, text=text, first=now, last=now, until=until)
    return replace(before, what=what, text=text, last=now, until=until, many=before.many + 1)


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
    """Makes one item match its record while its claim lasts. Each cycle clears its ``wake`` first."""

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
        """The kind's pure decision, or a request for a fact that it needs."""

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
    def started(self) -> None:
        """Follow what concerns the item, from before the first ``run``."""
        self.attach()
        self.kind.sweep.attach(self.claim.item, self)

    def stopped(self) -> None:
        """Follow nothing any more, after the last ``run``."""
        item = self.claim.item
        self.kind.sweep.detach(item)
        self.detach()
        self.kind.block(item, False)
        self.kind.hold_back(item, None)

    async def run(self) -> bool:
        """Work until nothing is due before ``wake`` is set: true.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        while (after := await self._turn_and_rest()) is not None or self.wake.is_set():
            # Nothing but the pause is kept while the worker waits for a time.
            await wait(self.wake, self.context.clock, after)
        return True

    async def _turn_and_rest(self) -> float | None:
        """One cycle, and the rest after a costly one; the seconds until the next is due."""
        outcome, spent = await metered(self._turn(), self.context.cpu)
        rest = min(REST * spent, REST_LIMIT)
        if rest < REST_LEAST:
            return outcome.after
        await self.wake.rest(self.context.clock, rest)
        return None if outcome.after is None else max(0.0, outcome.after - rest)

    async def watch_desires(self) -> AsyncIterator[Outcome]:
        """As ``run``, but yields the outcome of each cycle (p2 ``WatchDesires``)."""
        self.started()
        try:
            while True:
                outcome = await self._turn()
                yield outcome
                await wait(self.wake, self.context.clock, outcome.after)
        finally:
            self.stopped()

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
        """Whether the audit has a record of this already: it was tried before, and failed."""
        return self.refusal is not None and self.refusal.what == what

    async def count_refusal(
        self, what: object, text: str, *, noun: str, name: str, least: float = 0.0
    ) -> Outcome:
        """Count a try that was refused; it rests for ``least`` seconds or longer, then it is repeated.

        Raises:
            StoreError: the audit record could not be written.
        """
        pause = max(least, self._grown() * self.context.rng.uniform(0.75, 1.25))
        refusal = self.note_refusal(what, text, pause)
        if refusal.counted:
            told = self.audit(f"{noun}.refused", text[:LONGEST_REASON], after=refusal.counts(), name=name)
            self.refusal, written = refusal.recorded(told)
            await self.writer.commit(written)
        return refusal.outcome(self.context.clock.mono())

    def note_refusal(self, what: object, text: str, pause: float) -> Refusal:
        """Delay the next try by this long; it needs no audit record of its own."""
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
