"""Progressive rollouts of Knative Services as a kind of work, and their worker."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from farmd.kubernetes import base
from farmd.kubernetes.base import KubernetesKind
from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.errors import Claimed, Conflict, KubernetesError, speaks_of_objects
from farmd.kubernetes.events import Events
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.knative import plan, reader, record, report, scales, writes
from farmd.kubernetes.knative.bounds import Contention
from farmd.kubernetes.knative.facts import Plan, RevisionBounds, Snapshot, Turn
from farmd.kubernetes.knative.ground import Ground
from farmd.kubernetes.knative.objects import CLAIM, SERVICES, KnativeService
from farmd.kubernetes.knative.reader import KnativeWatches, ServiceItems, Where
from farmd.kubernetes.knative.record import BY_PERSON
from farmd.kubernetes.knative.scales import Growth
from farmd.kubernetes.knative.writes import Writing, told_of
from farmd.kubernetes.transport import KubernetesTransport
from farmd.rollout.metrics import PHASES
from farmd.runtime.tasks import until_one_fails
from farmd.runtime.wake import Wake, earliest
from farmd.work.context import Context
from farmd.work.kind import Kind
from farmd.work.managing import Phases
from farmd.work.model import Ask, Outcome
from farmd.work.worker import Worker
from store.errors import CredentialInvalid
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session
from store.status import ItemStatus

# The worker of one Knative Service's rollout: the house's loop, with the API server beside Consul.
#
# Before a claim's first other write the record's status bears the claim, conditional on the version that
# was read; while a rollout is under way the service bears it, too, so that what a former owner still sends
# is refused (R16). An audit record in Consul, under the claim's fence, precedes each turn and batch of
# writes.

# So often at most the numbers of StagePodAutoscalers are written.
MIRROR_SECONDS = 10.0
# So often it is looked whether another tool has stopped to write bounds.
CALM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of a cluster's services share; ``wakes`` are theirs, by item."""

    transport: KubernetesTransport
    found: ServiceItems
    ground: Ground
    events: Events
    phases: Phases
    wakes: dict[str, Wake]


@dataclass(frozen=True, slots=True)
class Facts:
    """A service at one moment, where it is watched, and what is wrong with its annotations."""

    knative: Snapshot
    where: Where
    wrong: tuple[str, ...] = ()


class ProgressiveWorker(Worker[Facts, Plan]):
    """Rolls one service while its claim lasts."""

    __slots__ = ("_contention", "_done", "_fenced", "_growth", "_mirrored_at", "_shared", "_trying")

    def __init__(self, kind: Kind, shared: Shared, claim: Claim, session: Session, wake: Wake) -> None:
        super().__init__(kind, claim, session, wake)
        self._shared = shared
        self._contention = Contention(shared.transport.now())
        self._fenced = False
        self._done = Plan()
        self._trying: object = None
        self._mirrored_at = -math.inf
        self._growth = Growth(shared.transport.now())

    # -- the frame's hooks -----------------------------------------------------------------------
    def attach(self) -> None:
        """Have ``wake`` set by changes of whatever belongs to the service."""
        self._shared.wakes[self.claim.item] = self.wake

    def detach(self) -> None:
        """Undo ``attach``."""
        self._shared.wakes.pop(self.claim.item, None)
        self._shared.phases.see(self.claim.item, "")

    def stands(self) -> tuple[Operation, ...]:
        """No checks: the record is the API server's."""
        return ()

    def obstructed(self, reason: str) -> ItemStatus:
        """The status of a service that cannot be worked on, by its name."""
        where = self._where
        name = f"ksvc/{where.namespace}/{where.name}" if where is not None else ""
        return structs.replace(super().obstructed(reason), name=name)

    async def cycle(self) -> Outcome:
        """One cycle; what the API server refuses is a pause with its words, and no crash."""
        self._trying = None
        try:
            return await super().cycle()
        except Claimed as error:
            await self.block(error.message)
            return Outcome("blocked", self._grown(), error.message)
        except Conflict as error:
            if self._trying is not None:  # it needs no other audit record where it is tried again alike
                self.note_refusal(self._trying, error.message, 0.0)
            await self._fetch()
            return Outcome("rejected", None, error.message)
        except (KubernetesError, CredentialInvalid) as error:
            return await self._refused(error)

    async def read(self) -> Facts | Outcome:
        """The service with all that belongs to it."""
        if (where := self._where) is None:
            return await self.gone()
        ground = self._shared.ground
        if ground.problem:
            return Outcome("blocked", await self.block(ground.problem), ground.problem)
        knative, wrong = await reader.read(
            where,
            self.claim.item,
            ground,
            frozen=self._frozen(where),
            risen=self._growth.risen,
            now=self._shared.transport.now(),
        )
        if (record := knative.orchestrator) is not None:
            found = record.status.annotations.get(CLAIM, "")
            await base.check(self.context, self.claim, found, fenced=self._fenced)
        return Facts(self._growth.seen(knative), where, wrong)

    def _frozen(self, where: Where) -> str | None:
        """The evidence of a freeze, unless a person said something of this rollout since (R18)."""
        guard = self.kind.guard
        key, watches = (where.namespace, where.name), where.watches
        found, service = watches.orchestrators.store.get(*key), watches.services.store.get(*key)
        commanded = found is not None and record.said_at(found, service) > guard.frozen_since()
        return None if commanded else guard.frozen()

    def decide(self, snapshot: Facts) -> Plan | Ask[None]:
        """Pure (``plan.py``)."""
        return plan.decide(snapshot.knative)

    async def act(self, snapshot: Facts, plan: Plan) -> Outcome:
        """The fences, the audit record, then the turn or the writes, in this order.

        Bounds on an object where this version of Knative does not read them would restart pods that serve,
        so the version is read once more, as late as can be.
        """
        what = plan.turn and (plan.turn.action, plan.turn.reason), plan.writes
        if (rest := self.resting(what)) is not None:
            due = await self._tell(snapshot.knative.service, rest.reason)
            return Outcome(rest.result, earliest(rest.after, due), rest.reason)
        knative, writing = snapshot.knative, self._writing(snapshot.where)
        if knative.orchestrator is not None:
            knative = await self._fence(knative, plan, writing)
        if not self.repeats(what):
            await self.writer.commit(self._account(knative, plan))
        self._trying = what
        if plan.turn is not None:
            await writing.turn(knative, plan.turn)
            self._time(knative, plan.turn)
        if _bounded(knative, plan) and not await self._shared.ground.confirmed():
            return Outcome("after", 0.0)
        self._contention.note(knative, plan.writes)
        for each in plan.writes:
            await writing.write(knative, each)
        again, self._done = plan == self._done, plan
        return await self._count("what was written is overwritten") if again else Outcome("after", 0.0)

    def describe(self, snapshot: Facts, plan: Plan) -> ItemStatus | None:
        """None: the record's own status speaks, unless the rollout is blocked, or an alert is to be ended
        some day, also by another farm.
        """
        failure = report.failure(snapshot.knative)
        contended = self._contention.told(snapshot.knative.now) or ""
        told = ItemStatus(state="failed" if failure else "contended", reason=failure or contended)
        if plan.blocked is not None:
            state = "frozen" if plan.blocked.frozen else "blocked"
            told = ItemStatus(state=state, reason=plan.blocked.text)
        elif not self.status.incidents.open():
            return None
        since, name = self.context.clock.now(), f"ksvc/{snapshot.knative.service.name}"
        return structs.replace(told, name=name, farm=self.context.farm, since=since)

    async def alert(self, snapshot: Facts, plan: Plan) -> float | None:
        """A newcomer that failed, a way back that stands still, a wait for people; events on the service."""
        knative, item = snapshot.knative, self.claim.item
        service, events = knative.service, self._shared.events
        for text in snapshot.wrong:
            events.event(service, "Warning", "RolloutSettings", text)
        if plan.blocked is not None and not plan.blocked.wanted:
            events.event(service, "Warning", "RolloutBlocked", plan.blocked.text)
        self._shared.phases.see(item, report.phase(knative, plan))
        contended = self._contention.told(knative.now)
        due = await report.tell(self.status, item, knative, plan, self.context.clock.now(), contended)
        return earliest(due, CALM_SECONDS if contended else None)

    async def report(self, snapshot: Facts, plan: Plan) -> float | None:
        """Copy the status of the revisions' autoscalers to the StagePodAutoscalers while a rollout is in
        progress.
        """
        mirrored = await self._mirror(snapshot.knative, self._writing(snapshot.where))
        return earliest(mirrored, await super().report(snapshot, plan))

    async def _mirror(self, knative: Snapshot, writing: Writing) -> float | None:
        """A verdict at once, numbers now and then; the seconds until these are due."""
        if not self._fenced or knative.orchestrator is None or scales.rollout(knative).ready is True:
            return None
        stage = knative.record.spec.stage_target_revisions
        early = self._mirrored_at + MIRROR_SECONDS - knative.now
        late = False
        for name in (each.revision_name for each in stage if each.revision_name in knative.spas):
            spa, found = knative.spas[name], scales.mirrored(knative, name)
            if found == spa.status:
                continue
            if early > 0 and found.conditions == spa.status.conditions:
                late = True
                continue
            self._mirrored_at = knative.now
            await writing.mirror(spa, found)
        return early if late else None

    # -- the fences ------------------------------------------------------------------------------
    async def _fence(self, knative: Snapshot, plan: Plan, writing: Writing) -> Snapshot:
        """The service with this claim on it. A turn of the status bears the claim itself."""
        claim, record = self._claim, knative.record
        if record.status.annotations.get(CLAIM) != claim and (plan.turn is None or plan.turn.status is None):
            record = await writing.patch(record, writes.claim_patch(claim), subresource="status")
            knative = replace(knative, orchestrator=record)
        self._fenced = True
        service = knative.service
        borne = service.metadata.annotations.get(CLAIM) == claim
        if plan.writes and not borne and service.enabled and scales.rollout(knative).ready is not True:
            service = await writing.apply(service, writes.service_apply(knative, claim))
            knative = replace(knative, service=service)
        return knative

    @property
    def _claim(self) -> str:
        return base.text(self.context, self.claim)

    # -- writing ---------------------------------------------------------------------------------
    def _account(self, knative: Snapshot, plan: Plan) -> Operation:
        """The audit record of what is written next (R16)."""
        name = knative.service.name
        if plan.turn is not None:
            return self.audit(f"progressive.{plan.turn.action}", plan.turn.reason, name=name)
        told: dict[str, int | str | bool] = {}
        for each in plan.writes:
            told |= told_of(each)
        return self.audit("progressive.write", plan.waiting, after=told, name=name)

    def _time(self, knative: Snapshot, turn: Turn) -> None:
        """Observe the duration of the stage that a turn ends, and report a way back after a fault."""
        if turn.action not in ("stage-done", "back", "halt"):
            return
        if turn.action == "back" and turn.reason != BY_PERSON:
            self._shared.events.event(knative.service, "Warning", "RolloutReverted", turn.reason)
        done = "reverted" if record.back(knative) else "done"
        self.context.recorder.observe(
            "farmd_rollout_step_duration_seconds",
            knative.now - scales.since(knative),
            result=done if turn.action == "stage-done" else "failed",
        )

    # -- reading ---------------------------------------------------------------------------------
    @property
    def _where(self) -> Where | None:
        return self._shared.found.known.get(self.claim.item)

    def _writing(self, where: Where) -> Writing:
        return Writing(where.watches, self.claim.item, self._claim)

    async def _fetch(self) -> None:
        """Read the record and the service from the server, because what the watch told was out of date."""
        if (where := self._where) is None:
            return
        place, watches = (where.namespace, where.name, self.claim.item), where.watches
        await watches.orchestrators.objects.get(*place)
        if watches.services.store.get(where.namespace, where.name) is not None:
            await watches.services.objects.get(*place)

    async def _refused(self, error: KubernetesError | CredentialInvalid) -> Outcome:
        """Report the refusal in the server's words, and try again later."""
        told = speaks_of_objects(error)
        where = self._where
        if told and where is not None:
            service = where.watches.services.store.get(where.namespace, where.name)
            await self._tell(service, error.message)
        if self._trying is not None:
            rest = await self._count(error.message)
            return rest if told else Outcome("backoff", rest.after, error.message)
        delay = self._grown() * self.context.rng.uniform(0.75, 1.25)
        return Outcome("blocked" if told else "backoff", delay, error.message)

    async def _tell(self, service: KnativeService | None, text: str) -> float | None:
        """Report by the status and by an event why a service is not rolled out. Returns when to look
        again.
        """
        if service is not None:
            self._shared.events.event(service, "Warning", "RolloutRefused", text, anew=True)
        return await self.block(text)

    async def _count(self, text: str) -> Outcome:
        """Count a try of which nothing came."""
        where = self._where
        name = self.claim.item if where is None else f"{where.namespace}/{where.name}"
        return await self.count_refusal(self._trying, text, noun="progressive", name=name)


def _bounded(knative: Snapshot, plan: Plan) -> bool:
    """Whether a plan changes bounds of a revision that a route reaches; to hold a newcomer is urgent."""
    reached = knative.routed
    return any(isinstance(each, RevisionBounds) and each.revision in reached for each in plan.writes)


# Progressive rollouts of Knative Services as a kind of work: items are the services' uids, shared by locks.
#
# Without Knative the kind is idle: it looks now and then whether Knative is there, and watches nothing.

KIND = "progressive"


class Progressive(KubernetesKind):
    """The kind ``progressive``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        transport, clock = settings.transport, context.clock
        found = ServiceItems((settings.contact.feature,))
        ground = Ground(transport, settings.knative_namespace, clock)
        events = Events(transport, SERVICES, clock)
        phases = Phases(context.recorder, "farmd_rollouts", "phase", PHASES, target="ksvc")
        self.shared = Shared(transport, found, ground, events, phases, {})
        found.watches = [
            KnativeWatches(
                namespace,
                transport,
                self.validity,
                self._changed,
                clock=clock,
                rng=context.rng,
            )
            for namespace in settings.namespaces or ("",)
        ]
        super().__init__(context)

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Those of all namespaces."""
        return [informer for each in self.shared.found.watches for informer in each.informers]

    @property
    def wakes(self) -> Mapping[str, Wake]:
        """Those of the services' workers."""
        return self.shared.wakes

    def records(self) -> Any:
        """The services that the API server has."""
        return self.shared.found

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ProgressiveWorker:
        """A worker for one service."""
        self.session = session
        return ProgressiveWorker(self, self.shared, claim, session, wake)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What looks for Knative, and the informers once it is there."""
        return (
            *super().background(),
            self.shared.ground.run(self._wake_all),
            self.shared.events.run(),
            self._watch(),
        )

    async def _watch(self) -> None:
        await self.shared.ground.found.wait()
        await until_one_fails([work for watches in self.shared.found.watches for work in watches.work()])

    def _changed(self, namespace: str, name: str) -> None:
        """Something of a service changed: look which items there are, and wake their workers."""
        found = self.shared.found
        found.look(namespace, name)
        for uid in found.of(namespace, name):
            if (wake := self.shared.wakes.get(uid)) is not None:
                wake.set()

    def _wake_all(self) -> None:
        for wake in self.shared.wakes.values():
            wake.set()
