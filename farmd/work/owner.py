"""The bases of kinds that own pods: read them, spend the removal budget, change them, end the owner.

``OwnerWorker`` is for all owners. ``ReplicaWorker`` is for those whose pods are replicas of one manifest: its
kind supplies a reader for its snapshot, decides, and turns a plan into changes of pods (``units``). What must
never break: every change names the record that it was planned from, removals that no person asked for stay
within the budget (R19), and a record that is being deleted goes last.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import structlog

from farmd.commands.mutation import audited
from farmd.commands.parts import pods_left
from farmd.pods.ailing import told, worst
from farmd.pods.crashes import Crashes, tell_of_crashes
from farmd.pods.placement import Spending
from farmd.pods.state import PodState, observed, settled, settling
from farmd.runtime.wake import Wake, earliest
from farmd.work.context import Context
from farmd.work.following import NAMED_AT_MOST, Followers, Unfollowed, change
from farmd.work.model import Ask, Outcome
from farmd.work.named import DELETED, NamedKind, NamedWorker, P, S
from farmd.work.owned import ReplicaPlan, ReplicaReading, Units
from scheduler.model import PlacementRequest
from store import manifests
from store.entry import Stored
from store.errors import AccessDenied, Conflict, InputInvalid, RecordInvalid
from store.locks import Claim
from store.operations import Operation
from store.pods import Place
from store.ports import Recorder
from store.sessions import Session
from store.signatures import UNSIGNED
from store.status import Status
from store.words import listed

# The base of the readers of all kinds that own replicas (R15).

F = TypeVar("F")


class ReplicaReader(ABC, Generic[F]):
    """Reads for one owner under one claim; a kind defines its reading."""

    __slots__ = ("context", "guard", "item", "noun")

    def __init__(self, kind: NamedKind, item: str) -> None:
        self.item = item
        self.context = kind.context
        self.guard = kind.guard
        self.noun = kind.noun

    @abstractmethod
    async def read(self, stored: Stored[Any]) -> F:
        """The owner and its fleet; facts that are needed only sometimes are left to ``answer``."""

    @abstractmethod
    async def answer(self, reading: F, need: Any) -> F:
        """The reading with the fact that was asked for."""

    async def request(self, record: Any) -> PlacementRequest:
        """The request to the scheduler for pods of a record of this kind.

        Raises:
            NotFound: its manifest is gone.
        """
        assert self.noun.pods is not None
        return self.noun.pods.request(record, await self.context.manifests.of(record))

    def pods(self, record: Any) -> dict[Place, PodState]:
        """The owner's present pods."""
        mono = self.context.clock.mono()
        return observed(self.context.fleet, self.item, record.min_healthy_time, mono)

    def running(self, record: Any) -> str:
        """The processes that nodes still run of an owner that is being deleted and has no pods left, as
        text.
        """
        fleet = self.context.fleet
        return fleet.processes.told(self.item) if record.deleting and not fleet.pods(self.item) else ""


log = structlog.get_logger()

R = TypeVar("R", bound=ReplicaReading)
Q = TypeVar("Q", bound=ReplicaPlan)


class OwnerKind(NamedKind):
    """A kind whose items own pods."""

    BUDGET_SPENT: ClassVar[str]
    """The evidence of the freeze when the removal budget is used up (R19)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.spending = Spending(context.fleet, self.name, context.budget(), self.guard)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the records, their pods with the intents, and the small trees that their plans rest on
        (R15).
        """
        await self.context.read_pods(items)
        await self.context.read_nodes()
        await super().barrier(items)


class OwnerWorker(NamedWorker[S, P]):
    """Changes one owner's pods."""

    __slots__ = ()

    kind: OwnerKind

    # -- the frame's hooks -----------------------------------------------------------------------
    def attach(self) -> None:
        """Have ``wake`` set by changes of the owner's pods and of their nodes."""
        self.context.fleet.attach(self.kind.name, self.claim.item, self.wake)

    def detach(self) -> None:
        """Undo ``attach``."""
        self.context.fleet.detach(self.claim.item)
        self.kind.spending.forget(self.claim.item)

    async def reread(self) -> None:
        """Read the record and the pods again, after a write whose outcome is unknown (R12)."""
        await super().reread()
        await self.context.caches.pods.barrier([self.context.keys.pods(self.claim.item)])

    async def read(self) -> S | Outcome:
        """The snapshot; removals that were not made are returned to the budget before."""
        self.kind.spending.settle(self.claim.item)
        return await super().read()

    def broken(self) -> RecordInvalid | None:
        """The error of a pod that does not decode; leaving the pod out would look like its absence."""
        return self.context.fleet.broken_pod(self.claim.item)

    # -- what every owner does alike -------------------------------------------------------------
    def spend(self, places: Sequence[Place]) -> Outcome | None:
        """Spend the budget on pods that no person asked to remove (R19); an outcome if they must stay."""
        if self.kind.spending.allows(self.claim.item, places, self.kind.BUDGET_SPENT):
            return None
        return Outcome("frozen", self.context.rng.uniform(1.0, 2.0), "the removal budget is used up")

    async def end(self, why: str = DELETED, besides: Sequence[Operation] = ()) -> Outcome:
        """Delete the record, after a read of what only the store knows for certain.

        No pod of the owner is recorded, and no node runs one; nodes that are given up do not count (R21).
        """
        context, item = self.context, self.claim.item
        # The cached realities may be old, and miss a process that runs.
        await context.caches.reality.barrier()
        if context.fleet.processes.of(item) or await pods_left(self.call(why), item):
            await context.caches.pods.barrier([context.keys.pods(item)])
            return Outcome("after", 0.0, "something of it remains")
        return await super().end(why, besides)


# A removal stays in the budget for so long (R19).
MINUTE = 60.0


class ReplicaKind(OwnerKind):
    """A kind whose items own replicas of one manifest."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.hands: dict[str, int] = {}
        self.shortfalls = Shortfalls(self.name)
        self.looping: set[str] = set()
        self.followers = Followers(
            context.client, context.keys, context.clock, context.farm, context.settings.follow
        )

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of all kinds, and the one that looks at followed config keys."""
        return (*super().background(), self.followers.run())

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics of owners that fall short, and of crash loops."""
        super().publish(recorder)
        self.shortfalls.publish(recorder)
        recorder.set("farmd_crash_loops", len(self.looping), kind=self.name)

    async def barrier(self, items: Sequence[str]) -> None:
        """Read what plans rest on (R15).

        ``hands`` are those of the records that were known before, so the pods are at least as new (R14).
        """
        keys = self.context.keys
        known = [self.tree.get(keys.record(self.name, item)) for item in items]
        self.hands.update({stored.record.id: stored.record.hands for stored in known if stored is not None})
        await super().barrier(items)


class ReplicaWorker(OwnerWorker[R, Q]):
    """Makes one owner's pods match its record."""

    __slots__ = ("_began", "_ends", "_hands", "reader")

    kind: ReplicaKind

    def __init__(
        self, kind: ReplicaKind, claim: Claim, session: Session, wake: Wake, reader: ReplicaReader[R]
    ) -> None:
        super().__init__(kind, claim, session, wake)
        self.reader = reader
        self._began = self.context.clock.mono()
        self._ends = Crashes()
        self._hands = kind.hands.pop(claim.item, 0)

    # -- what a kind says ------------------------------------------------------------------------
    @abstractmethod
    def describe(self, snapshot: R, plan: Q) -> Status:
        """The status of the owner's pods."""

    @abstractmethod
    async def units(self, reading: R, plan: Q) -> Units:
        """The changes that a plan makes, and what must hold for them besides the record."""

    async def done(self, reading: R, plan: Q) -> None:
        """Called when the whole plan was committed."""

    async def refused(self, reading: R, plan: Q) -> None:
        """Called when the plan was rejected, after pods and records were read again."""

    # -- the frame's hooks -----------------------------------------------------------------------
    def detach(self) -> None:
        """Undo ``attach``, and count the owner in no metric."""
        super().detach()
        self.kind.shortfalls.forget(self.claim.item)
        self.kind.looping.discard(self.claim.item)
        self.kind.followers.forget(self.claim.item)

    async def reread(self) -> None:
        """Read the outcome of an execution that did not end well (R12)."""
        await super().reread()
        await self.context.caches.work.barrier()

    async def freshen(self, record: Any) -> None:
        """Read the pods and their intents where the owner's manager changed pods since the last plan (R14).

        Farms hear of a changed record at once, and of the pods that others changed some seconds later.
        """
        if record.hands != self._hands:
            await self.context.read_pods([self.claim.item])
            self._hands = record.hands

    async def look(self, stored: Stored[Any]) -> R:
        """The reading of the kind's reader, and what is known of the config keys that the owner follows."""
        reading, record = await self.reader.read(stored), stored.record
        if not getattr(record, "follow", False) or record.deleting:
            self.kind.followers.forget(self.claim.item)
            return reading
        manifest = await self.context.manifests.get(record.manifest)
        found = self.kind.followers.follow(self.claim.item, record.manifest, manifest, self.wake)
        snapshot = dataclasses.replace(reading.snapshot, following=found)
        return dataclasses.replace(reading, snapshot=snapshot)  # type: ignore[type-var]

    async def answer(self, snapshot: R, ask: Ask[Any]) -> R:
        """The reading with the fact that the plan lacks."""
        return await self.reader.answer(snapshot, ask.need)

    def decided(self, snapshot: R, plan: Q) -> None:
        """While the plan waits for places, have the worker woken by anything that may make room."""
        self.context.fleet.unschedulable(self.claim.item, snapshot.snapshot.waits_for_room)

    def obstructed(self, reason: str) -> Status:
        """The status of a blocked owner, with the pods that there are."""
        known, item = self.status.known, self.claim.item
        desired = known.desired if isinstance(known, Status) else 0
        placed = len(self.context.fleet.pods(item))
        return Status(state="blocked", reason=reason, desired=desired, placed=placed)

    async def report(self, snapshot: R, plan: Q) -> float | None:
        """Write the status with the worst pod's exit; returns when time alone changes it (R22).

        A claim younger than ``min_healthy_time`` cannot know that the pods are available. If an earlier owner
        wrote ``converged`` and only that knowledge is missing, its status stays: a starting farm would
        otherwise rewrite the status of every item twice, and own a timer for each (R23a).
        """
        pods: Mapping[Place, PodState] = snapshot.snapshot.pods
        said = self.describe(snapshot, plan)
        works, place = said.state != "disabled", worst(pods)
        ails = ""
        if works and place is not None:
            ails = await told(self.context.client, self.context.keys, place, pods)
        record = snapshot.stored.record
        loops = await self._crashes(record, pods if works else {}, ails)
        young = self.context.clock.mono() - self._began < record.min_healthy_time
        available = sum(state.healthy if young else state.available for state in pods.values())
        desired = said.desired if works and not record.deleting else 0
        self.kind.shortfalls.see(self.claim.item, record.name, desired, available)
        if young:
            whole = dataclasses.replace(snapshot.snapshot, pods=settled(pods))
            later = self.describe(dataclasses.replace(snapshot, snapshot=whole), plan)  # type: ignore[type-var]
            if later.state == "converged" and self.status.stands(later, self.index):
                return loops
        if ails and said.state in {"progressing", "blocked"}:
            reason = f"{said.reason}; {ails}" if said.reason else ails
            said = msgspec.structs.replace(said, reason=reason)
        due = await self.status.write(said, self.index, (*self.stands(), *self._unsigned(said, snapshot)))
        return earliest(due, settling(pods.values()), loops) if works else due

    def _unsigned(self, said: Status, reading: R) -> Sequence[Operation]:
        """The audit record of a pod that its node refuses, beside the status that is the first to tell of it
        (R32).
        """
        known = self.status.known
        if UNSIGNED not in said.reason or (known is not None and UNSIGNED in known.reason):
            return ()
        noun, name = self.kind.noun.words.noun, reading.stored.record.name
        return (self.audit(f"{noun}.unsigned", said.reason, name=name),)

    async def _crashes(self, record: Any, pods: Mapping[Place, PodState], ails: str) -> float | None:
        """Keep one alert open while a pod is in a crash loop; the seconds until time alone changes that."""
        noun, incidents, now = self.kind.noun.words.noun, self.status.incidents, self.context.clock.now()
        key = f"{noun}_crashes_{self.claim.item}"
        self._ends.look(record.manifest, pods, now, told=key in incidents)
        tell = partial(self.tell, key, f"{noun} {record.name!r}: crash loop: {ails or self._ends}")
        due = await tell_of_crashes(incidents, key, tell, self._ends, pods, record.min_healthy_time, now)
        (self.kind.looping.add if key in incidents else self.kind.looping.discard)(self.claim.item)
        return due

    async def tell(self, key: str, text: str, **details: str) -> None:
        """Fire a low alert with the text; an empty text resolves it."""
        about = {f"{self.kind.noun.words.noun}_id": self.claim.item, "farm": self.context.farm}
        await self.status.incidents.say(key, text, about | details)

    # -- execute ---------------------------------------------------------------------------------
    async def act(self, snapshot: R, plan: Q) -> Outcome:
        """Change pods, or delete the record."""
        if plan.ends:
            return await self.end()
        if plan.contended:
            return Outcome("rejected", None, plan.contended)
        if plan.follows:
            return await self._follow(snapshot.stored, plan.follows)
        if (overdrawn := self.spend(plan.unasked)) is not None:
            return overdrawn
        if plan.restarts and not self.kind.spending.restarts(plan.restarts):
            plan = dataclasses.replace(plan, restarts=(), after=earliest(plan.after, MINUTE))
            if plan.empty:
                return Outcome("after", MINUTE, "the removal budget is used up")
        # Also while it asks what that rests on, and for a move that only begins, which places no pod yet.
        with self.context.fleet.expecting(self.claim.item, plan.arriving):
            return await self._execute(snapshot, plan)

    async def _follow(self, stored: Stored[Any], changed: Sequence[str]) -> Outcome:
        """Begin the change to the present values of the followed config keys, or note why none begins."""
        followers, item, noun = self.kind.followers, self.claim.item, self.kind.noun
        call = self.call(f"followed values changed: {listed(list(changed), NAMED_AT_MOST)}")
        manifest = await self.context.manifests.get(stored.record.manifest)
        try:
            mutation = await change(call, noun, stored, manifest)
        except Unfollowed as error:
            if error.stores:  # so that a person can sign it
                audit = self.audit(f"{noun.words.noun}.unsigned", str(error), name=stored.record.name)
                body = manifests.ensure(self.context.keys, error.stores)
                await self.writer.commit(*self.stands(), body, audit)
            followers.tried(item, str(error), stuck=error.stuck, again=error.again)
        except (AccessDenied, Conflict, InputInvalid, RecordInvalid) as error:
            followers.tried(item, f"follow: {error.message}", stuck=True)
        else:
            if mutation is not None:
                await self.writer.commit(*self.stands(), *mutation.operations, audited(call, mutation.change))
                log.info("follow.begun", **self.claim.named(), change=mutation.change.id)
            followers.forget(item)  # the next look begins with what runs then
        return Outcome("after", 0.0)

    async def _execute(self, reading: R, plan: Q) -> Outcome:
        units, checks = await self.units(reading, plan)
        standing = len(reading.snapshot.pods)
        report = await self.carry_out(reading.stored, plan.why, units, standing=standing, checks=checks)
        self.kind.spending.settle(self.claim.item)
        blocked = plan.blocked.text if plan.blocked is not None else ""
        log.info(
            "cycle.done",
            **self.claim.named(),
            **plan.counts(),
            committed=report.committed,
            reason=report.reason or blocked,
        )
        if report.replan:
            await self.refused(reading, plan)
            return Outcome("rejected", None, report.reason)
        await self.done(reading, plan)
        # The worker's own commits have woken it; the next cycle confirms them and writes the status.
        return Outcome("done", None, blocked)


# The owners of a farm that have fewer available pods than they should, for the metrics.
#
# A fleet has ten thousand owners, so only those that fall short are exported by name, and of a failure of
# all
# of them no more than ``MOST``; their number is always exported.


MOST = 20
DESIRED, AVAILABLE = "farmd_owner_desired_pods", "farmd_owner_available_pods"


@dataclass(eq=False)
class Shortfalls:
    """Those of one kind: by item their name, their desired pods, and the available ones."""

    kind: str
    _short: dict[str, tuple[str, int, int]] = field(default_factory=dict, init=False)
    _exported: set[str] = field(default_factory=set, init=False)

    def see(self, item: str, name: str, desired: int, available: int) -> None:
        """Note how many pods an owner should have, and has."""
        if available < desired:
            self._short[item] = name, desired, available
        else:
            self.forget(item)

    def forget(self, item: str) -> None:
        """Drop an owner that this farm does not look after, or that should have no pods."""
        self._short.pop(item, None)

    def publish(self, recorder: Recorder) -> None:
        """Export the worst: first owners without any pod, then those that miss the most pods."""
        worst = sorted(self._short.values(), key=lambda each: (each[2] > 0, each[2] - each[1], each[0]))
        shown = {name: (desired, available) for name, desired, available in worst[:MOST]}
        recorder.set("farmd_owners_short", len(self._short), kind=self.kind)
        for name in self._exported - shown.keys():
            recorder.forget(DESIRED, kind=self.kind, owner=name)
            recorder.forget(AVAILABLE, kind=self.kind, owner=name)
        for name, (desired, available) in shown.items():
            recorder.set(DESIRED, desired, kind=self.kind, owner=name)
            recorder.set(AVAILABLE, available, kind=self.kind, owner=name)
        self._exported = set(shown)
