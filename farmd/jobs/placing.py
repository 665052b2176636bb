"""Places for members of a job: chosen on one view, each type after what the former ones took (R17)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import msgspec

from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Call, Mutation
from farmd.commands.outlook import Outlook
from farmd.jobs.commands import JOB, JobSpec
from farmd.jobs.facts import Room, Slot, attempt_of
from scheduler.decide import LabelSelectorScheduler
from scheduler.errors import PlacementInvalid
from scheduler.fleet import populated, used_amounts
from scheduler.ledger import Reservation, change_reservations
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest, PodView
from scheduler.protocol import Scheduler
from store import manifests, selectors
from store.features import JOBS
from store.jobs import JOB_ID_LABEL, MAX_REPLICAS, Job, Run, Type
from store.labels import POD_ID_LABEL
from store.manifests import Manifest, canonical, digest
from store.pods import Place
from store.words import listed

# The instances of a job's members, ``<job>-<type>-<index>~<attempt>``, and their environment.
#
# An attempt in the instance's name makes a retry a new intent, a new reality and a log of its own.


def instance_of(job: Job, slot: Slot, attempt: int) -> str:
    """The instance of a member."""
    return f"{job.name}-{slot.type}-{slot.index}~{attempt}"


def slot_of(job: Job, instance: str) -> tuple[Slot, int] | None:
    """The slot and the attempt of an instance; None: no member of this job has such a name."""
    base, _, attempt = instance.removeprefix(f"{job.name}-").rpartition("~")
    kind, _, index = base.rpartition("-")
    if not (index.isdecimal() and attempt.isdecimal()):
        return None
    slot = Slot(kind, int(index))
    return (slot, int(attempt)) if instance_of(job, slot, int(attempt)) == instance else None


def rank_of(job: Job, slot: Slot) -> int:
    """The slot's number among all slots of the job, types as declared."""
    before = 0
    for each in job.types:
        if each.name == slot.type:
            break
        before += each.replicas
    return before + slot.index


def variables(job: Job, slot: Slot, attempt: int) -> dict[str, str]:
    """What a member's environment says of its slot."""
    return {
        "FARMD_JOB": job.name,
        "FARMD_TYPE": slot.type,
        "FARMD_INDEX": str(slot.index),
        "FARMD_RANK": str(rank_of(job, slot)),
        "FARMD_WORLD_SIZE": str(job.size),
        "FARMD_ATTEMPT": str(attempt),
    }


def labels_of(job: Job, kind: Type) -> dict[str, str]:
    """The labels of a type's members."""
    return {**kind.pod_labels, POD_ID_LABEL: kind.pod_id, JOB_ID_LABEL: job.id}


def request_of(job: Job, kind: Type, manifest: Manifest) -> PlacementRequest:
    """What the scheduler is asked for members of one type; a node may have any number of them."""
    return PlacementRequest(
        manifest=manifest,
        selector=selectors.parse(kind.node_selector),
        owner=job.id,
        labels=labels_of(job, kind),
        numbered=True,
        replicas_per_node=MAX_REPLICAS,
        features=(JOBS,),
    )


async def requests(call: Call, job: Job) -> list[tuple[str, PlacementRequest]]:
    """What the scheduler is asked for one more member of each type."""
    bodies = {sha: await manifests.read(call.client, call.keys, sha) for sha in job.manifests}
    return [(kind.name, request_of(job, kind, bodies[kind.manifest])) for kind in job.types]


@dataclass(slots=True)
class Desk:
    """The fleet with the changes of one plan laid over it; ``reservations`` are those of changed nodes."""

    view: dict[str, NodeView]
    reservations: dict[str, Reservation] = field(default_factory=dict)

    @classmethod
    def over(cls, view: FleetView) -> Desk:
        """A desk that changes nothing yet."""
        return cls(dict(view))

    def free(self, places: Iterable[Place]) -> None:
        """Give back the room of members that ended or go."""
        self._lay(change_reservations(self.view, remove=[Assignment(*place) for place in places]))

    def reserve(self, request: PlacementRequest, places: Iterable[Place]) -> list[Assignment]:
        """Reserve the room of new members; those that stand on nodes of the view."""
        goals = [Assignment(*place) for place in places if place[0] in self.view]
        self._lay(change_reservations(self.view, add=goals, request=request))
        return goals

    def take(self, request: PlacementRequest, places: Iterable[Place]) -> None:
        """Lay new members over the view, for the types that are placed after them."""
        for goal in self.reserve(request, places):
            node = self.view[goal.node]
            pods = {**node.pods, goal.instance: PodView(request.owner, request.labels)}
            self.view[goal.node] = populated(node, pods)

    def _lay(self, changed: Iterable[Reservation]) -> None:
        for each in changed:
            node, used = self.view[each.node], used_amounts(each.record)
            self.view[each.node] = msgspec.structs.replace(node, reserved=each.record, used=used)
            self.reservations[each.node] = each


@dataclass(frozen=True, slots=True)
class Places:
    """The node of each slot that has a place, and why the others have none."""

    nodes: Mapping[Slot, str]
    why: str = ""

    @property
    def room(self) -> Room:
        """The slots that have a place, as the plan sees them."""
        return Room(frozenset(self.nodes), self.why)


class Missing(NamedTuple):
    """A member that lacks a place: its slot, and the instance that it will be."""

    slot: Slot
    instance: str


async def places_for(
    job: Job,
    run: Run,
    slots: Sequence[Slot],
    manifests: Mapping[str, Manifest],
    desk: Desk,
    scheduler: Scheduler,
) -> Places:
    """Places for members of these slots, as many as there are.

    Raises:
        SchedulerError: the scheduler has no trustworthy answer.
    """
    nodes: dict[Slot, str] = {}
    why: list[str] = []
    for name, group in groupby(slots, key=lambda slot: slot.type):
        kind = job.type(name)
        assert kind is not None
        wanted = [Missing(slot, instance_of(job, slot, attempt_of(run, slot))) for slot in group]
        request = request_of(job, kind, manifests[kind.manifest])
        found = await scheduler.allocate_nodes(request, len(wanted), desk.view)
        given = dict(zip(wanted, (goal.node for goal in found.assignments), strict=False))
        met = [each for each, node in given.items() if each.instance in desk.view[node].pods]
        for each in met:
            del given[each]
        nodes |= {each.slot: node for each, node in given.items()}
        if met or len(nodes) < len(slots):
            desk.take(request, ((node, each.instance) for each, node in given.items()))
        nodes |= await _elsewhere(request, met, desk, scheduler)
        if taken := [each.instance for each in met if each.slot not in nodes]:
            why.append(f"{name}: another owner has {listed(taken, 3)} on the nodes with room")
        if found.why:
            why.append(f"{name}: {found.why}")
    return Places(nodes, "; ".join(why))


async def _elsewhere(
    request: PlacementRequest, met: Iterable[Missing], desk: Desk, scheduler: Scheduler
) -> dict[Slot, str]:
    """Nodes where nobody has the instances of members: names of two jobs may meet in one."""
    nodes: dict[Slot, str] = {}
    for member in met:
        free = frozenset(name for name, node in desk.view.items() if member.instance not in node.pods)
        asked = msgspec.structs.replace(request, among=free)
        for goal in (await scheduler.allocate_nodes(asked, 1, desk.view)).assignments:
            desk.take(request, [(goal.node, member.instance)])
            nodes[member.slot] = goal.node
    return nodes


# Where the first members of a job would stand, for ``--dry-run``.


def forecast(mutation: Mutation, spec: JobSpec) -> Mutation:
    """The creation of a job with an outlook; one that is not needed as it is."""
    if not mutation.needed:
        return mutation
    job = JOB.file.build(spec, mutation.change.id)
    manifests = {digest(canonical(pod)): pod for pod in spec.pods}

    async def outlook(fleet: Fleet) -> Outlook:
        desk = Desk.over(fleet.view({job.id}))
        scheduler = LabelSelectorScheduler()
        try:
            found = await places_for(job, Run(), _first(job), manifests, desk, scheduler)
        except PlacementInvalid as error:
            return Outlook(unplaced=(error.message,))
        if job.gang and found.why:
            return Outlook(unplaced=(found.why,))
        adds = tuple((node, instance_of(job, slot, 0)) for slot, node in found.nodes.items())
        return Outlook(adds=adds, unplaced=(found.why,) if found.why else ())

    return replace(mutation, outlook=outlook)


def _first(job: Job) -> list[Slot]:
    """The slots that get a member first."""
    if job.suspend:
        return []
    return [
        Slot(kind.name, index)
        for kind in job.types
        for index in range(min(kind.replicas, kind.parallelism or kind.replicas))
    ]
