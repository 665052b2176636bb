"""The worker of one replication controller (p2 ``pkg/rc/replication_controller.go``).

Read, ask the scheduler, decide, execute, say how it went: the whole state each time, never the event. It
ends only by cancellation or when its claim is lost. Errors of the store are retried with backoff; blocked
is a state with a reason, woken by changes of the world and not by a timer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import structlog

from farmd.placement import Subject
from farmd.pod_changes import Change, grouped
from farmd.replication import plan as planning
from farmd.replication.model import Offer, Outcome, Place, Plan, PodState, Snapshot
from farmd.replication.report import Reporter
from farmd.wake import Wake, wait
from scheduler.errors import SchedulerError
from scheduler.model import Assignment, Request
from scheduler.reservations import Reservation, reserve
from store import rcs
from store.entry import Stored
from store.errors import (
    AccessDenied,
    InputInvalid,
    NotFound,
    RecordInvalid,
    SessionSuspended,
    StoreError,
)
from store.intent import Intent
from store.labels import pod_labels
from store.locks import Claim
from store.pods import Pod
from store.selectors import parse
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.replication.kind import Tools

log = structlog.get_logger()

BACKOFF_START = 0.5
BACKOFF_LIMIT = 60.0
# What no waiting mends: it is said in the status, and tried again all the same.
FOR_PEOPLE = (AccessDenied, SchedulerError, NotFound, RecordInvalid, InputInvalid)


class ReplicationController:
    """Keeps one RC converged while its claim lasts (seed ``ReplicationController``)."""

    __slots__ = (
        "_backoff",
        "_claim",
        "_id",
        "_key",
        "_reporter",
        "_session",
        "_tools",
        "_unsettled",
        "_wake",
    )

    def __init__(self, claim: Claim, session: Session, tools: Tools) -> None:
        self._claim = claim
        self._session = session
        self._tools = tools
        self._id = claim.item
        self._key = tools.keys.record("rcs", claim.item)
        self._wake = Wake()
        self._backoff = BACKOFF_START
        self._unsettled = False
        self._reporter = Reporter(claim, session, tools)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            ClaimLost: the lock is no longer this claim's.
        """
        async for _ in self.watch_desires():
            pass

    async def watch_desires(self) -> AsyncIterator[Outcome]:
        """Yield the outcome of each cycle, for ever (seed ``WatchDesires``)."""
        tools = self._tools
        tools.world.attach(self._id, self._wake.set)
        try:
            while True:
                self._wake.clear()
                started = tools.clock.mono()
                outcome = await self._guarded_cycle()
                tools.recorder.observe(
                    "farmd_cycle_duration_seconds", tools.clock.mono() - started, kind="rcs"
                )
                tools.recorder.count("farmd_cycles_total", kind="rcs", result=outcome.result)
                tools.world.block(self._id, outcome.result in ("blocked", "frozen"))
                yield outcome
                await wait(self._wake, tools.clock, outcome.after)
        finally:
            tools.world.detach(self._id)

    def current_pods(self) -> list[Place]:
        """All pods managed by this RC, as (node, instance) (seed ``CurrentPods``)."""
        return sorted(self._tools.world.pods(self._id))

    async def _guarded_cycle(self) -> Outcome:
        """One cycle; what the store refuses is retried later, with backoff and jitter."""
        try:
            outcome = await self._cycle()
        except (StoreError, SchedulerError) as error:
            delay = self._backoff * self._tools.rng.uniform(0.75, 1.25)
            self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
            if isinstance(error, SessionSuspended):
                delay = min(delay, 1.0)
            log.warning(
                "rc.cycle.failed", rc_id=self._id, error_code=error.code, error=str(error), after_s=delay
            )
            stored = self._tools.caches.rcs.get(self._key)
            if isinstance(error, FOR_PEOPLE) and stored is not None:
                await self._reporter.block(f"{error.code}: {error}", stored.index)
                return Outcome("blocked", delay, error.code)
            return Outcome("backoff", delay, error.code)
        if outcome.result != "rejected":
            self._backoff = BACKOFF_START
        return outcome

    async def _cycle(self) -> Outcome:
        if self._unsettled:
            await self._reread()
        world, rcs_tree = self._tools.world, self._tools.caches.rcs
        if (broken := rcs_tree.broken.get(self._key)) is not None:
            due = await self._reporter.block(broken.message, int(broken.fields.get("index", 0)))
            return Outcome("blocked", due, "the record does not decode")
        stored = rcs_tree.get(self._key)
        if stored is None:
            await self._reporter.over()
            return Outcome("blocked", None, "the record is gone")
        if (broken := world.broken_pod(self._id)) is not None:
            due = await self._reporter.block(broken.message, stored.index)
            return Outcome("blocked", due, "a pod does not decode")
        snapshot, reservations = await self._read(stored)
        plan = planning.decide(snapshot)
        world.hunger(self._id, bool(snapshot.offer.missing))
        world.hold_back(self._id, plan.blocked.startswith("frozen"))
        if not plan.empty:
            return await self._execute(stored, snapshot, plan, reservations)
        # Nothing to change: now there is time to tell people, as often as is useful to them.
        status_due = await self._reporter.say(snapshot, plan, stored.index)
        if status_due is not None:
            return Outcome("after", status_due, plan.blocked)
        if plan.blocked.startswith("frozen"):
            return Outcome("frozen", None, plan.blocked)
        return Outcome("blocked" if plan.blocked else "done", None, plan.blocked)

    # -- read ----------------------------------------------------------------------------------
    async def _reread(self) -> None:
        """After an execution that did not end well: nothing is planned before its outcome was read (R12)."""
        caches = self._tools.caches
        await caches.rcs.barrier([self._key])
        await caches.pods.barrier([self._tools.keys.pods(self._id)])
        self._unsettled = False

    async def _read(
        self, stored: Stored[rcs.ReplicationController]
    ) -> tuple[Snapshot, dict[str, Reservation]]:
        """The RC and its world. A converged RC costs no request and no question to the scheduler."""
        tools, rc = self._tools, stored.record
        pods = {
            place: PodState(
                pod,
                tools.world.intent(place),
                tools.world.reality(place),
                unreadable=tools.world.unreadable(place),
            )
            for place, pod in tools.world.pods(self._id).items()
        }
        offer, reservations = Offer(), dict[str, Reservation]()
        active = not rc.disabled and not rc.managed_by
        if active and len(pods) < rc.replicas_desired:
            allocation = await tools.scheduler.allocate_nodes(
                await self._request(rc), rc.replicas_desired - len(pods), tools.world.fleet()
            )
            offer = Offer(allocation.assignments, allocation.missing, allocation.why)
            reservations = {change.node: change for change in allocation.reservations}
        if pods and self._needs_eligibility(rc, pods):
            pods = await self._judge(rc, pods)
        guard = tools.guard
        frozen = guard.frozen()
        commanded = frozen is not None and 0 < guard.frozen_index() < stored.index
        return Snapshot(rc, pods, offer, frozen, commanded), reservations

    async def _request(self, rc: rcs.ReplicationController) -> Request:
        manifest = await self._tools.manifests.get(rc.manifest)
        return Request(
            manifest=manifest,
            selector=parse(rc.node_selector),
            owner=self._id,
            labels=pod_labels(rc, manifest),
            replicas_per_node=rc.replicas_per_node,
        )

    def _needs_eligibility(self, rc: rcs.ReplicationController, pods: dict[Place, PodState]) -> bool:
        """Only removals and repairs ask whether a node may keep its pod."""
        return len(pods) > rc.replicas_desired or any(
            state.intent is None or state.intent.record.manifest != state.pod.record.manifest
            for state in pods.values()
        )

    async def _judge(
        self, rc: rcs.ReplicationController, pods: dict[Place, PodState]
    ) -> dict[Place, PodState]:
        among = msgspec.structs.replace(await self._request(rc), among=frozenset(node for node, _ in pods))
        answer = await self._tools.scheduler.eligible_nodes(among, self._tools.world.fleet())
        retained = {*answer.eligible, *answer.retained}
        return {
            place: dataclasses.replace(state, retained=place[0] in retained) for place, state in pods.items()
        }

    # -- execute -------------------------------------------------------------------------------
    async def _execute(
        self,
        stored: Stored[rcs.ReplicationController],
        snapshot: Snapshot,
        plan: Plan,
        reservations: dict[str, Reservation],
    ) -> Outcome:
        request = await self._request(stored.record)
        changes = self._changes(snapshot, plan, request)
        reservations |= await self._reservations(request, changes)
        subject = Subject(
            "rcs", self._id, stored.record.name, f"farm/{self._tools.farm}", self._key, stored.index
        )
        self._unsettled = True
        report = await self._tools.placement.execute(
            grouped([(change,) for change in changes], reservations),
            subject,
            self._claim,
            self._session,
            standing=len(snapshot.pods),
        )
        self._unsettled = False
        log.info(
            "rc.cycle.done",
            rc_id=self._id,
            placed=len(plan.additions),
            removed=len(plan.removals),
            repaired=len(plan.repairs),
            replaced=len(plan.replacements),
            committed=report.committed,
            reason=report.reason or plan.blocked,
        )
        if not report.replan:
            # Own commits woke this worker already; the next cycle confirms and writes the status.
            return Outcome("done", None, plan.blocked)
        delay = self._tools.rng.uniform(0.0, self._backoff)
        self._backoff = min(self._backoff * 2, BACKOFF_LIMIT)
        return Outcome("rejected", delay, report.reason)

    def _changes(self, snapshot: Snapshot, plan: Plan, request: Request) -> list[Change]:
        rc, now, labels = snapshot.rc, self._tools.clock.now(), request.labels
        new = Pod(manifest=rc.manifest, labels=dict(labels), at=now)
        intent = Intent(manifest=rc.manifest, owner=self._id)
        changes = []
        for place in plan.removals:
            state = snapshot.pods[place]
            changes.append(Change("remove", *place, None, None, state.pod, state.intent))
        changes += [Change("place", a.node, a.instance, new, intent) for a in plan.additions]
        for place in plan.repairs:
            state = snapshot.pods[place]
            repaired = Intent(manifest=state.pod.record.manifest, owner=self._id)
            changes.append(Change("repair", *place, state.pod.record, repaired, state.pod, state.intent))
        for place in plan.replacements:
            if place not in plan.repairs:
                state = snapshot.pods[place]
                pod = Pod(manifest=rc.manifest, labels=dict(labels), at=state.pod.record.at)
                changes.append(Change("replace", *place, pod, intent, state.pod, state.intent))
        return changes

    async def _reservations(self, request: Request, changes: list[Change]) -> dict[str, Reservation]:
        """What removals give back and replacements change, by node (R17); additions bring their own."""
        view = self._tools.world.fleet()
        going = [Assignment(c.node, c.instance) for c in changes if c.action == "remove"]
        moving = [Assignment(c.node, c.instance) for c in changes if c.action == "replace"]
        changed = reserve(moving, request.manifest.resources, view)
        if going:
            changed += (await self._tools.scheduler.deallocate_nodes(request, going, view)).reservations
        return {change.node: change for change in changed}
