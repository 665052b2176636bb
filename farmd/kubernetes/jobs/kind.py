"""Jobs in Kubernetes as a kind of work, and their worker: items are uids that farms share by locks."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from farmd.farm.errors import ClaimLost
from farmd.farm.writer import Write
from farmd.jobs import plan as planning
from farmd.jobs import reader
from farmd.jobs.facts import Need, Plan
from farmd.jobs.report import tell_blocked
from farmd.jobs.run_copy import RunCopy, Takeover, all_runs
from farmd.kubernetes import base
from farmd.kubernetes.base import KubernetesKind
from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.errors import DENIED, Claimed, Conflict, KubernetesError, speaks_of_objects
from farmd.kubernetes.informer import Informer
from farmd.kubernetes.install import documents
from farmd.kubernetes.jobs import facts
from farmd.kubernetes.jobs.adoption import CannotAdopt, ClaimFailed
from farmd.kubernetes.jobs.controller import JobControllerConfiguration
from farmd.kubernetes.jobs.facts import Facts, Freeze
from farmd.kubernetes.jobs.items import JobItems, Known, Shared
from farmd.kubernetes.jobs.kindfile import kinds
from farmd.kubernetes.jobs.podgroups import flavours
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.jobs.report import REFUSED, ResourceStatus, counts_of, patch_of, refused, turns
from farmd.kubernetes.jobs.unit import JobObject, Unit
from farmd.kubernetes.objects import CRDS
from farmd.runtime.wake import Wake, earliest
from farmd.work.context import Context
from farmd.work.model import Ask, Blocked, Outcome
from farmd.work.worker import Worker
from store import operations
from store.errors import CredentialInvalid, InputInvalid, StoreError
from store.families import RUNS
from store.jobs import JobStatus, Run
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session
from store.times import rfc3339

# The worker of one job in Kubernetes: the house's loop, with the API server beside Consul.
#
# The claim's first write is the job's own status, conditional on the version that was planned from, with
# the claim in it (R16). The run (``runs/<uid>``) and audit records are written in Consul under the claim's
# fence.

log = structlog.get_logger()

STATUS_PAUSE = 1.0
MOMENT = 0.1
SETTLE_SECONDS = 30.0
INVALID = frozenset({400, 413, 422})
FAILURES = (KubernetesError, ApiFailed, ClaimFailed, CannotAdopt, CredentialInvalid)


class KubeJobWorker(Worker[Facts, Plan]):
    """Runs one job while its claim lasts."""

    __slots__ = ("_differs", "_fenced", "_invalid", "_run", "_shared", "_trying", "_unanswered")

    kind: KubernetesKind

    def __init__(
        self, kind: KubernetesKind, shared: Shared, run: RunCopy, claim: Claim, session: Session, wake: Wake
    ) -> None:
        super().__init__(kind, claim, session, wake)
        self._shared = shared
        self._fenced = -1
        self._invalid = ""
        self._run = run
        self._differs = math.inf
        self._unanswered: tuple[Facts, Plan, float] | None = None
        self._trying: object = None

    # -- the frame's hooks -----------------------------------------------------------------------
    def attach(self) -> None:
        """Have ``wake`` set by changes of its pods and services."""
        self._shared.wakes[self.claim.item] = self.wake

    def detach(self) -> None:
        """Undo ``attach``."""
        self._shared.wakes.pop(self.claim.item, None)

    def stands(self) -> tuple[Operation, ...]:
        """No checks: the job's record is the API server's."""
        return ()

    async def gone(self) -> Outcome:
        """Resolve the job's alerts; if the API server has the job no more, delete all that the store has."""
        outcome = await super().gone()
        keys, kind, item = self.context.keys, self.kind.name, self.claim.item
        if item in self._shared.found.known:
            return outcome  # the job is over, and there for people to read
        if self.kind.guard.frozen() is not None:
            return outcome  # the run is found again later
        left = keys.record(RUNS.name, item), keys.status(kind, item), keys.work(kind, item)
        try:
            await self.kind.contact.confirm(self.context)
            await self.writer.commit(*map(operations.delete, left), self.audit("job.forget", outcome.reason))
        except (StoreError, KubernetesError, ClaimLost) as error:
            log.info("job.not_forgotten", item=item, error=str(error))  # the run is found again later
        return outcome

    async def reread(self) -> None:
        """Read the outcome of a transaction that nobody answered (R12)."""
        self._run.forget()

    async def cycle(self) -> Outcome:
        """One cycle; what the API server refuses is a pause with its words, and no crash."""
        self._trying = None
        try:
            return await super().cycle()
        except Conflict as error:
            await self._fetch()
            return Outcome("rejected", None, error.message)
        except FAILURES as error:
            return await self._refused(error)

    async def read(self) -> Facts | Outcome:
        """The job, once every own write to it was seen."""
        if (found := self._job()) is None:
            return await self._missing()
        unit, job = found
        status = job.status
        await base.check(self.context, self.claim, status.claim, fenced=self._fenced >= 0)
        spec = msgspec.json.decode(job.spec)
        seen = unit.engine.satisfied(job, list((spec or {}).get(unit.data.replica_specs) or {}))
        if not seen and (wait := await self._settled()) > 0:
            return Outcome("after", wait)
        self._unanswered = None
        try:
            run, now = await self._run.read(self.context, self.claim.item), self._shared.transport.now()
            return await facts.read(unit, job, spec, status, run, now, self._invalid, self._freeze(job))
        except InputInvalid as error:
            return Outcome("blocked", await self._tell(error.message, everywhere=True), error.code)

    def decide(self, snapshot: Facts) -> Plan | Ask[Need]:
        """Pure (``farmd/jobs/plan.py``)."""
        return planning.decide(snapshot.snapshot)

    async def act(self, snapshot: Facts, plan: Plan) -> Outcome:
        """The run, the fence and the status, the audit record, then the objects: in this order.

        What was refused rests, but for the run and for the times of the status.
        """
        job, what = snapshot.job, facts.outside(snapshot, plan)
        if self.refusal is not None and self.repeats(what) and snapshot.status.true("Blocked"):
            plan = replace(plan, blocked=Blocked(REFUSED, self.refusal.text))
        if plan.run is not None:
            await self._write_run(snapshot, plan.run)
            reader.count(self.context.recorder, snapshot.snapshot, plan)
        after = facts.status_after(snapshot, plan)
        if self._fenced != snapshot.unit.generation or turns(snapshot.status, after):
            job = await self._write_status(snapshot.unit, job, after)
        if (rest := self.resting(what)) is not None:
            return Outcome(rest.result, earliest(rest.after, await self.block(rest.reason)), rest.reason)
        if plan.changes and not self.repeats(what):
            await self.writer.commit(self._account(snapshot, plan))
        self._trying = what
        if plan.delete_job:
            await facts.delete_job(snapshot.unit, job)
            return Outcome("after", SETTLE_SECONDS)
        try:
            await facts.sync_gang(snapshot, plan)
            await facts.remove(snapshot, plan)
            await self._create(snapshot, plan)
        except ApiFailed as error:
            if error.unknown:
                self._unanswered = snapshot, plan, self.context.clock.mono() + SETTLE_SECONDS
            raise
        return Outcome("after", 0.0)

    async def alert(self, snapshot: Facts, plan: Plan) -> float | None:
        """A low alert once it is blocked for ten minutes."""
        blocked = plan.blocked
        return await tell_blocked(self, self._name, "" if blocked is None else blocked.text)

    async def block(self, reason: str) -> float | None:
        """Report why it cannot be worked on, with the same alert; returns when to look again."""
        return earliest(await tell_blocked(self, self._name, reason), await super().block(reason))

    def describe(self, snapshot: Facts, plan: Plan) -> JobStatus | None:
        """None: the resource's own status speaks, unless the job is blocked, or an alert of that is open."""
        if plan.blocked is None and not self.status.incidents.open():
            return None
        state: str = plan.status.state
        if plan.blocked is not None:
            state = "frozen" if plan.blocked.frozen else "blocked"
        reason = "" if plan.blocked is None else plan.blocked.text
        return JobStatus(state=state, reason=reason, farm=self.context.farm, since=self.context.clock.now())

    async def report(self, snapshot: Facts, plan: Plan) -> float | None:
        """Write the resource's status if it changed: conditions in a moment, in which the members that change
        together do so, counters after a second.
        """
        before, after = snapshot.status, facts.status_after(snapshot, plan)
        wait = None
        if patch_of(before, after) is not None:
            now = self.context.clock.mono()
            self._differs = min(self._differs, now)
            pause = STATUS_PAUSE if before.conditions == after.conditions else MOMENT
            if (wait := self._differs + pause - now) <= 0:
                wait = None
                await self._write_status(snapshot.unit, snapshot.job, after)
        return earliest(wait, await super().report(snapshot, plan))

    # -- writing ---------------------------------------------------------------------------------
    async def _create(self, snapshot: Facts, plan: Plan) -> None:
        """Create a plan's objects; one that the API server does not take ends the job in the next cycle."""
        try:
            await facts.create(snapshot, plan)
        except ApiFailed as error:
            if error.status not in INVALID or error.reason == DENIED:
                raise
            self._invalid = str(error)

    async def _settled(self) -> float:
        """Settle writes that were not answered once the server can carry out none of them any more; seconds
        to wait before the next look.
        """
        if self._unanswered is None:
            return SETTLE_SECONDS
        snapshot, plan, due = self._unanswered
        if (left := due - self.context.clock.mono()) > 0:
            return left
        await facts.settle(snapshot, plan)
        return 0.0

    async def _write_status(self, unit: Unit, job: JobObject, after: ResourceStatus) -> JobObject:
        claimed = msgspec.structs.replace(after, claim=base.text(self.context, self.claim))
        if unit.data.dated and self._fenced != unit.generation:
            # So exact that two claims never write the same, which would change no version.
            at = rfc3339(self._shared.transport.now(), "microseconds")
            claimed = msgspec.structs.replace(claimed, last_reconcile_time=at)
        self._differs = math.inf
        generation = unit.generation
        written = await facts.write_status(unit, job, claimed)
        self._fenced = generation
        return written

    async def _write_run(self, snapshot: Facts, run: Run) -> None:
        """The run's counts, in one transaction with their audit record, if they changed."""
        counts, standing = counts_of(run), self._run.stored
        before = standing.record if standing is not None else Run()
        if counts == before:
            return
        more, meta = counts.restarts - before.restarts, snapshot.job.metadata
        audit = self.audit(
            "job.run",
            f"{more} more restarts" if more > 0 else "slots ended",
            before={"restarts": before.restarts, "attempt": before.attempt},
            after={"restarts": counts.restarts, "attempt": counts.attempt},
            name=f"{meta.namespace}/{meta.name}",
        )
        key = self.context.keys.record(RUNS.name, self.claim.item)
        self._run.forget()
        where = f"{self._shared.cluster}/{snapshot.unit.data.plural}/{meta.namespace}/{meta.name}"
        counts = msgspec.structs.replace(counts, source=where)
        await self.writer.commit(Write.over(key, counts, standing, self._run), audit)

    def _account(self, snapshot: Facts, plan: Plan) -> Operation:
        """The audit record of a batch of changes outside Consul, which goes before them (R16)."""
        meta = snapshot.job.metadata
        return self.audit(
            "job.delete" if plan.delete_job else "job.members",
            plan.status.message or plan.status.state,
            after={"create": len(plan.create), "remove": len(plan.remove)},
            name=f"{meta.namespace}/{meta.name}",
        )

    # -- reading ---------------------------------------------------------------------------------
    async def _missing(self) -> Outcome:
        """Ask the server for a job that no watch knows; without it this is no item any more."""
        known = self._shared.found.known.get(self.claim.item)
        if known is None:
            return await self.gone()
        job = await known.unit.objects.get(known.namespace, known.name, self.claim.item)
        if job is None or job.metadata.uid != self.claim.item:
            self._shared.found.forget(self.claim.item)
        return Outcome("after", SETTLE_SECONDS, "the job is not known")

    def _job(self) -> tuple[Unit, JobObject] | None:
        known = self._shared.found.known.get(self.claim.item)
        job = known.unit.jobs.get(known.namespace, known.name) if known is not None else None
        ours = job is not None and job.metadata.uid == self.claim.item
        return (known.unit, job) if known is not None and job is not None and ours else None

    @property
    def _name(self) -> str:
        """The job as people write it, ``namespace/name``; its uid once it is gone."""
        known = self._shared.found.known.get(self.claim.item)
        return self.claim.item if known is None else f"{known.namespace}/{known.name}"

    def _freeze(self, job: JobObject) -> Freeze:
        """What freezes removals. A person's command is a change of the job after the freeze (R18); the times
        are compared by the API server's clock.
        """
        guard, clock = self.kind.guard, self.context.clock
        since = guard.frozen_since() + self._shared.transport.now() - clock.now()
        return Freeze(guard.frozen() or "", commanded=job.asked_at > since)

    async def _fetch(self) -> None:
        """Read the job from the server, because what the watch told was out of date."""
        known = self._shared.found.known.get(self.claim.item)
        if known is not None:
            await known.unit.objects.get(known.namespace, known.name, self.claim.item)

    async def _refused(self, error: Exception) -> Outcome:
        """Tell people in the server's words, and try again later."""
        text = str(error)
        if getattr(error, "reason", "") == "Conflict":
            if self._trying is not None:  # it needs no other audit record where it is tried again alike
                self.note_refusal(self._trying, text, 0.0)
            return Outcome("rejected", None, text)
        unknown, told = getattr(error, "unknown", False), speaks_of_objects(error)
        due = await self._tell(text, everywhere=not isinstance(error, Claimed)) if told else None
        if self._trying is not None:
            rest = await self.count_refusal(
                self._trying, text, noun="job", name=self._name, least=SETTLE_SECONDS if unknown else 0.0
            )
            return Outcome(rest.result if told else "backoff", earliest(rest.after, due), text)
        delay = self._grown() * self.context.rng.uniform(0.75, 1.25)
        return Outcome("blocked" if told else "backoff", delay, text)

    async def _tell(self, text: str, *, everywhere: bool) -> float | None:
        """Say in the store why a job is refused, and ``everywhere`` on the job, too, where that may be
        written; returns when to look again.
        """
        if everywhere and (found := self._job()) is not None:
            unit, job = found
            unit.engine.controls.recorder.event(job, "Warning", "Refused", text, anew=True)
            try:
                after = refused(job.status, text, self._shared.transport.now())
                if after != job.status:
                    await self._write_status(unit, job, after)
            except (KubernetesError, InputInvalid) as error:
                log.info("job.condition_not_written", item=self.claim.item, error=str(error))
        return await self.block(text)


# Jobs in Kubernetes as a kind of work: items are the uids of custom resources that farms share by locks.
#
# Runs of jobs that vanished while nobody watched them are found now and then, and deleted.

KIND = "kubejobs"
COLLECT_SECONDS = 3600.0


class KubeJobs(KubernetesKind):
    """The kind ``kubejobs``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        settings: KubernetesSettings = context.sections["kubernetes"]
        config = JobControllerConfiguration(bool(settings.gang), settings.resync)
        self.units = [
            Unit(
                data,
                namespace,
                settings.transport,
                self.validity,
                config,
                clock=context.clock,
                rng=context.rng,
                gang=flavours()[settings.gang] if settings.gang else None,
                init_image=settings.init_image,
            )
            for plural, data in kinds().items()
            if plural in settings.jobs
            for namespace in settings.namespaces or ("",)
        ]
        found = JobItems(self.units, (settings.contact.feature,))
        self.shared = Shared(settings.name, settings.transport, found)
        self.runs = Takeover(context)
        super().__init__(context)
        own = [each for each in documents(settings.jobs) if each["kind"] == CRDS.kind]
        self.contact.definitions |= {each["metadata"]["name"]: each for each in own}

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """The watches of all units."""
        return [informer for unit in self.units for informer in unit.informers]

    @property
    def wakes(self) -> dict[str, Wake]:
        """The wakers of the jobs' workers."""
        return self.shared.wakes

    def records(self) -> Any:
        """The jobs that the API server has."""
        return self.shared.found

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the last statuses and the runs. What jobs are planned from besides may lag: a claim's first
        write is conditional on the very version of the job (R15, R16).
        """
        await super().barrier(items)
        await self.runs.read(items)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> KubeJobWorker:
        """A worker for one job."""
        self.session = session
        return KubeJobWorker(self, self.shared, self.runs.take(claim.item), claim, session, wake)

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The informers, and the queues of due jobs."""
        watching = [work for unit in self.units for work in unit.background()]
        return (
            *super().background(),
            *watching,
            *map(self._dispatch, self.units),
            self._collect(),
        )

    async def _dispatch(self, unit: Unit) -> None:
        """Wake the workers of the jobs that the queue names."""
        while True:
            async with unit.engine.work_queue.turn() as key:
                namespace, _, name = (key or "").partition("/")
                job = unit.jobs.get(namespace, name)
                wake = self.shared.wakes.get(job.metadata.uid) if job is not None else None
                if wake is not None:
                    wake.set()

    async def _collect(self) -> None:
        """Find runs of jobs that vanished while nobody watched them; whoever claims these deletes them."""
        while True:
            await self.context.clock.sleep(COLLECT_SECONDS * self.context.rng.uniform(0.9, 1.1))
            try:
                runs = await all_runs(self.context)
            except StoreError as error:
                log.debug("kubernetes.runs_not_read", code=error.code)
                continue
            for uid, stored in runs.items():
                if stored is not None and (where := self._where(stored.record.source)) is not None:
                    self.shared.found.leave(uid, where)

    def _where(self, source: str) -> Known | None:
        """Where the job of a run is; None: it is not for this farm to say whether it is there."""
        cluster, _, rest = source.partition("/")
        plural, _, path = rest.partition("/")
        namespace, _, name = path.partition("/")
        units = (unit for unit in self.units if unit.data.plural == plural)
        unit = next((unit for unit in units if unit.namespace in ("", namespace)), None)
        ours = unit is not None and cluster == self.shared.cluster and name
        return Known(unit, namespace, name) if ours and unit is not None else None
