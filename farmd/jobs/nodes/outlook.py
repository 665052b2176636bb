"""Where the first members of a job would stand, for ``--dry-run``."""

from __future__ import annotations

from dataclasses import replace

from farmd.commands.fleet import Fleet
from farmd.commands.mutation import Mutation
from farmd.commands.outlook import Outlook
from farmd.jobs.commands import JOB
from farmd.jobs.model import Slot
from farmd.jobs.nodes.instances import instance_of
from farmd.jobs.nodes.placing import Desk, places_for
from farmd.jobs.spec import JobSpec
from scheduler.decide import LabelSelectorScheduler
from scheduler.errors import PlacementInvalid
from store.jobs import Job, Run
from store.manifests import canonical, digest


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
