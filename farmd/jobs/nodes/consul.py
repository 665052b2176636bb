"""Jobs on nodes: what the plan is made from, from caches, and the one record that no watch covers (R15).

``runs/<id>`` is read once a claim, by a consistent read, and known from then on by this worker's own commits:
nobody else writes it while the claim lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from farmd.jobs.description import described
from farmd.jobs.model import CONSUL, Member, Need, Plan, Room, Snapshot, attempt_of
from farmd.jobs.nodes import sight
from farmd.jobs.nodes.placing import Desk, Places, places_for
from farmd.jobs.retries import tries_again
from farmd.jobs.run_copy import RunCopy
from farmd.pods.state import PodState, observe, observed
from farmd.runtime.wake import earliest
from farmd.work.named import NamedKind
from scheduler.model import FleetView
from store.entry import Stored
from store.errors import RecordInvalid
from store.families import RUNS
from store.jobs import Job, Run, known_run
from store.manifests import Manifest
from store.pods import Place


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
        doubts = self._doubts(pods)
        members, strays = sight.members(job, pods, patience, now, doubts)
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
        after = earliest(sight.due(job, pods, patience, now), *doubts.values())
        return Facts(stored, snapshot, _by_id(pods), manifests, after=after)

    def _doubts(self, pods: Mapping[Place, PodState]) -> dict[Place, float]:
        """The pods of drained nodes whose agents have not answered for them since they came back, or since
        the store was restored, each with how many seconds that may last.
        """
        answers = self._context.fleet.answers
        doubted = {place: answers.doubted(place) for place, state in pods.items() if state.draining}
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
        seen, _ = sight.members(job, pods, _patience(reading.manifests), now, self._doubts(pods))
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
        return sight.leaving(job, {place: self._context.fleet.reality(place) for place in sorted(left)})

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
