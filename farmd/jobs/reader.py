"""Jobs on nodes: what the plan is made from, from caches, and the one record that no watch covers (R15).

``runs/<id>`` is read once a claim, by a consistent read, and known from then on by this worker's own commits:
nobody else writes it while the claim lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from farmd.jobs.facts import (
    CONSUL,
    Cause,
    Member,
    Need,
    Phase,
    Plan,
    Room,
    Slot,
    Snapshot,
    attempt_of,
    described,
)
from farmd.jobs.placing import Desk, Places, places_for, slot_of
from farmd.jobs.run_copy import RunCopy
from farmd.pods.state import PodState, observe, observed, replaceable_at
from farmd.runtime.wake import earliest
from farmd.work.named import NamedKind
from scheduler.model import FleetView
from store.entry import Stored
from store.errors import RecordInvalid
from store.families import RUNS
from store.jobs import Job, Run, known_run
from store.manifests import Manifest
from store.pods import Place
from store.ports import Recorder
from store.reality import Exit, Glance

# Members of a job on nodes, as the plan sees them: made from pods, intents and what agents report.
#
# What must never break: of a pod whose agent is absent nobody can tell how it goes, until its node is given
# up and its agent must have stopped it there (R21, R27).

_PHASES: dict[str, Phase] = {
    "held": "held",
    "running": "running",
    "backoff": "running",
    "exited": "running",
    "stopping": "running",
}


def members_of(
    job: Job,
    pods: Mapping[Place, PodState],
    stop_after: Mapping[str, float],
    now: float,
    doubted: Collection[Place],
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """The members of a job's slots, and its strays; ``stop_after`` is that of each manifest. What the store
    says of the pods at ``doubted`` places may be of the past.
    """
    known, strays = [], []
    for place, state in sorted(pods.items()):
        found = slot_of(job, place[1])
        ident = "/".join(place)
        if found is None:
            strays.append(Member(slot=Slot("", 0), id=ident, version=str(state.pod.index)))
            continue
        slot, attempt = found
        known.append(
            Member(
                slot=slot,
                attempt=attempt,
                id=ident,
                version=str(state.pod.index),
                hold=state.intent is not None and state.intent.record.hold,
                at=state.pod.record.at,
                **_seen(
                    job,
                    state,
                    stop_after.get(state.pod.record.manifest, 0.0),
                    now,
                    doubted=place in doubted,
                ),
            )
        )
    return tuple(known), tuple(strays)


def leaving(job: Job, left: Mapping[Place, Glance | None]) -> tuple[Member, ...]:
    """What nodes run, or may run, of members whose pods were removed, and how others of these ended."""
    found = []
    for place, said in left.items():
        known = slot_of(job, place[1])
        if known is not None and said is not None:
            well = said.phase == "done" and _ended(said.ended, 0.0)["phase"] == "succeeded"
            over: Phase = "succeeded" if well else "failed" if said.phase == "done" else "running"
            ident = "/".join(place)
            found.append(Member(slot=known[0], attempt=known[1], id=ident, phase=over, leaving=True))
    return tuple(found)


def _seen(job: Job, state: PodState, stop_after: float, now: float, *, doubted: bool) -> dict[str, Any]:
    """Phase, cause and end of a member."""
    said = state.reality
    own = said if isinstance(said, Glance) and _acted(state, said) else None
    if own is not None and own.phase == "done":
        return {"restarts": own.restarts, **_ended(own.ended, now)}
    if state.pod.record.done:
        return {"phase": "failed", "cause": "lost"}
    if state.lost is not None:
        due = replaceable_at(state, job.on_lost, stop_after)
        gone = due is not None and due <= now
        return {"phase": "unknown", "cause": "lost" if gone else "", "message": "its node is lost"}
    if state.absent:
        return {"phase": "unknown", "message": "its node's agent is absent"}
    if state.draining and doubted:
        return {"phase": "unknown", "message": "waiting for a report of its node's agent"}
    if state.draining:
        return {"phase": "failed", "cause": "evicted", "ended": now, "message": "its node is drained"}
    message = said.reason if isinstance(said, Glance) else ""
    if own is None:
        return {"phase": "starting", "message": message}
    return {"phase": _PHASES.get(own.phase, "starting"), "restarts": own.restarts, "message": message}


def _acted(state: PodState, said: Glance) -> bool:
    """Whether the agent speaks of this very member, and acted on its intent as it is."""
    return (
        state.intent is not None
        and said.intent >= state.intent.index
        and said.manifest == state.pod.record.manifest
        and said.owner in ("", state.intent.record.owner)
    )


def _ended(end: Exit | None, now: float) -> dict[str, Any]:
    if end is None:
        return {"phase": "failed", "cause": "lost", "ended": now}
    phase: Phase = "succeeded" if end.code == 0 and not end.cause else "failed"
    cause: Cause = end.cause
    code = end.code if end.code >= 0 else 128 - end.code
    ended, message = min(end.at, now), end.message
    if phase == "succeeded" or cause == "lost":
        return {"phase": phase, "cause": cause, "ended": ended, "message": message}
    return {"phase": phase, "cause": cause, "exit": code, "ended": ended, "message": message}


def due(
    job: Job, pods: Mapping[Place, PodState], stop_after: Mapping[str, float], now: float
) -> float | None:
    """Seconds until time alone changes what can be told of a member on a lost node."""
    times = (
        replaceable_at(state, job.on_lost, stop_after.get(state.pod.record.manifest, 0.0))
        for state in pods.values()
        if not state.pod.record.done
    )
    return min((at - now for at in times if at is not None and at > now), default=None)


# The metric of members that are tried again, for both backends.

RESTARTS = "farmd_job_restarts_total"


def tries_again(before: Run, after: Run) -> bool:
    """Whether a run has attempts that another one has not."""
    return after.attempt != before.attempt or after.slots != before.slots


def count(recorder: Recorder, before: Snapshot, plan: Plan) -> None:
    """Count the members that a committed plan tries again, by why they ended."""
    if plan.run is None or plan.run.outcome or not tries_again(before.run, plan.run):
        return
    for member in before.members:
        retried = member.attempt == attempt_of(before.run, member.slot) < attempt_of(plan.run, member.slot)
        if retried and member.phase in ("failed", "unknown"):
            recorder.count(RESTARTS, cause=member.cause or "exit")


@dataclass(frozen=True, slots=True)
class Facts:
    """A job at one moment, and what its plan is carried out with.

    ``view`` is what ``places`` were chosen from; None: no slot needed one. ``after``: seconds until time
    alone changes what is known of a member.
    """

    stored: Stored[Job]
    snapshot: Snapshot
    pods: Mapping[str, tuple[Place, PodState]]
    manifests: Mapping[str, Manifest]
    places: Places | None = None
    view: FleetView | None = None
    after: float | None = None

    def without_room(self, why: str, after: float) -> Facts:
        """The same job without a place for any slot for so many seconds."""
        snapshot = replace(self.snapshot, room=Room(frozenset(), why))
        return replace(self, snapshot=snapshot, after=earliest(self.after, after))

    @property
    def standing(self) -> list[Member]:
        """The members whose pods stand; of others only processes are left."""
        return [member for member in self.snapshot.members if not member.leaving]

    def left_on_drained(self) -> list[Member]:
        """Members that ended and stay for their logs, on nodes that are drained."""
        drained = {
            ident for ident, (_, state) in self.pods.items() if state.draining and state.pod.record.done
        }
        return [member for member in self.standing if member.id in drained] if drained else []

    def tried_again(self, plan: Plan) -> list[Member]:
        """The members that a plan's run replaces; they go once it is durable."""
        before, after = self.snapshot.run, plan.run
        if after is None or not tries_again(before, after):
            return []
        return [
            member
            for member in self.snapshot.members
            if attempt_of(before, member.slot) <= member.attempt < attempt_of(after, member.slot)
        ]

    def given_up(self, members: Iterable[Member]) -> list[Place]:
        """The places of those members that may run still, on lost nodes that nobody drains by force."""
        states = [self.state(member) for member in members if member.id in self.pods]
        return [
            place
            for place, state in states
            if state.lost is not None and not state.pod.record.done and state.draining != "forced"
        ]

    def state(self, member: Member) -> tuple[Place, PodState]:
        """The place and the state of a member."""
        return self.pods[member.id]


class Backend:
    """Reads one job under one claim."""

    __slots__ = ("_context", "_guard", "_item", "run")

    def __init__(self, kind: NamedKind, item: str, run: RunCopy) -> None:
        self._context = kind.context
        self._guard = kind.guard
        self._item = item
        self.run = run

    async def read(self, stored: Stored[Job]) -> Facts:
        """The job with its members.

        Raises:
            RecordInvalid: its run does not decode or was lost, and nobody deletes it. NotFound: a manifest of
                it is gone.
        """
        context, job = self._context, stored.record
        run = await self._run(job)
        manifests = {} if job.deleting or run.outcome else await self._manifests(job)
        now = context.clock.now()
        pods = observed(context.fleet, self._item, 0.0, context.clock.mono())
        patience = _patience(manifests)
        doubts = self._doubts(pods, manifests)
        members, strays = members_of(job, pods, patience, now, doubts)
        members += self._leaving(job, run, pods)
        snapshot = Snapshot(
            job=described(job),
            traits=CONSUL,
            run=run,
            members=members,
            strays=strays,
            now=now,
            frozen=self._guard.frozen() or "",
            commanded=self._guard.commanded(stored.index),
        )
        after = earliest(due(job, pods, patience, now), *doubts.values())
        return Facts(stored, snapshot, _by_id(pods), manifests, after=after)

    def _doubts(
        self, pods: Mapping[Place, PodState], manifests: Mapping[str, Manifest]
    ) -> dict[Place, float]:
        """The pods of drained nodes whose agents have not answered for them since they came back, or since
        the store was restored, each with how many seconds that may last.
        """
        answers = self._context.fleet.answers
        doubted = {}
        for place, state in pods.items():
            if state.draining:
                manifest = manifests.get(state.pod.record.manifest)
                doubted[place] = answers.doubted(place, manifest.runtime if manifest else "process")
        return {place: left for place, left in doubted.items() if left > 0}

    async def _run(self, job: Job) -> Run:
        """How far a job is; of one that a person deletes it does not matter, and need not decode."""
        try:
            await self.run.read(self._context, self._item)
            stored, key = self.run.stored, self._context.keys.record(RUNS.name, self._item)
            return known_run(job, None if stored is None else stored.record, key)
        except RecordInvalid:
            if not job.deleting:
                raise
            return Run()

    def again(self, reading: Facts, changed: Collection[Place]) -> Facts:
        """The reading after a commit of its own worker's: only the pods at these places are seen anew.

        No member was removed whose process may run still.
        """
        context, job, run = self._context, reading.stored.record, self.run.stored
        assert run is not None
        now, mono, fleet = context.clock.now(), context.clock.mono(), context.fleet
        standing = fleet.pods(self._item)
        pods = {
            place: observe(fleet, place, standing[place], 0.0, mono) for place in changed if place in standing
        }
        doubts = self._doubts(pods, reading.manifests)
        seen, _ = members_of(job, pods, _patience(reading.manifests), now, doubts)
        old = {"/".join(place) for place in changed}
        kept = tuple(member for member in reading.snapshot.members if member.id not in old)
        others = {ident: found for ident, found in reading.pods.items() if ident not in old}
        frozen = self._guard.frozen() or ""
        snapshot = replace(reading.snapshot, run=run.record, members=kept + seen, now=now, frozen=frozen)
        return replace(reading, snapshot=snapshot, pods=others | _by_id(pods), view=None)

    def _leaving(self, job: Job, run: Run, pods: Mapping[Place, PodState]) -> tuple[Member, ...]:
        """Processes that nodes still run of members that were removed: their slots wait for their ends.

        Only a slot that was tried before, or a job that was stopped, can have such. Earlier versions did not
        note that a job was stopped.
        """
        stopped = run.stopped or (not run.job and self.run.stored is not None and not run.started)
        if not (run.slots or run.attempt or stopped):
            return ()
        left = set(self._context.fleet.processes.known(self._item)) - pods.keys()
        return leaving(job, {place: self._context.fleet.reality(place) for place in sorted(left)})

    async def answer(self, reading: Facts, wanted: Need) -> Facts:
        """The reading with places for these slots.

        Raises:
            SchedulerError: the scheduler has no trustworthy answer.
        """
        job, run = reading.stored.record, reading.snapshot.run
        view = self._context.fleet.view()
        desk = Desk.over(view)
        desk.free(ended(reading))
        found = await places_for(job, run, wanted.slots, reading.manifests, desk, self._context.scheduler)
        return replace(reading, places=found, view=view, snapshot=replace(reading.snapshot, room=found.room))

    async def _manifests(self, job: Job) -> dict[str, Manifest]:
        return {sha: await self._context.manifests.get(sha) for sha in job.manifests}


def _by_id(pods: Mapping[Place, PodState]) -> dict[str, tuple[Place, PodState]]:
    return {"/".join(place): (place, state) for place, state in pods.items()}


def _patience(manifests: Mapping[str, Manifest]) -> dict[str, float]:
    return {sha: manifest.stop_after for sha, manifest in manifests.items()}


def ended(reading: Facts) -> Iterable[Place]:
    """The places of members that ended, and reserve room still."""
    for member in reading.standing:
        place, state = reading.state(member)
        if member.over and member.cause != "evicted" and not state.pod.record.done:
            yield place
