"""The jobs of all kinds in one cluster, as the API server has them when a person asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farmd.commands.mutation import Call
from farmd.jobs.objects import KubePod
from farmd.jobs.resources.conditions import ResourceStatus
from farmd.jobs.resources.kindfile import KindFile, kinds
from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import Forbidden, NotFound
from farmd.kubernetes.kind import KIND
from farmd.kubernetes.people.refusals import refusal
from farmd.kubernetes.resources import PODS, Resource
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport
from farmd.kubernetes.unit import JobObject
from farmd.overview.owners import holders
from store import errors
from store.jobs import JobStatus
from store.status import StatusStore


class FoundJob(NamedTuple):
    """A job and its kind."""

    kind: KindFile
    job: JobObject

    @property
    def name(self) -> str:
        """As people write it: ``ml/bert``."""
        return f"{self.job.metadata.namespace}/{self.job.metadata.name}"

    @property
    def status(self) -> ResourceStatus:
        """Its own status; an empty one where that does not decode."""
        try:
            return self.job.status
        except errors.InputInvalid:
            return ResourceStatus()


class FoundJobs(NamedTuple):
    """Jobs; a line for each kind whose jobs may not be read, and for each job that does not decode."""

    jobs: Sequence[FoundJob]
    refused: Sequence[str]


class Told(NamedTuple):
    """What farms say of jobs, by uid: who holds its lock, and why one does not go on."""

    owners: Mapping[str, str]
    statuses: Mapping[str, JobStatus]


async def told(call: Call) -> Told:
    """What farms say of all jobs in Kubernetes."""
    owners = await holders(call.client, call.keys, KIND)
    return Told(owners, await StatusStore(call.client, call.keys, KIND, JobStatus).list())


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport = transport
        self.pods = Objects(transport, PODS, KubePod, "pods", lambda: REQUEST_SECONDS)

    def of(self, kind: KindFile) -> Objects[JobObject]:
        """The jobs of one kind."""
        resource = Resource(kind.group, kind.version, kind.plural, kind.kind)
        return Objects(self._transport, resource, JobObject, "jobs", lambda: REQUEST_SECONDS)

    async def find(self, namespace: str, name: str) -> FoundJob:
        """The job of that name. A kind may stand before the namespace: ``tfjob.kubeflow.org/ml``.

        Raises:
            NotFound: there is none. Ambiguous: jobs of several kinds bear the name.
            AccessDenied: no kind may be read.
        """
        wanted, _, namespace = namespace.rpartition("/")
        asked = [kind for kind in kinds().values() if wanted in ("", kind.title)]
        answers = await asyncio.gather(
            *(self.of(kind).get(namespace, name) for kind in asked), return_exceptions=True
        )
        known = zip(asked, answers, strict=True)
        found = [FoundJob(kind, answer) for kind, answer in known if isinstance(answer, JobObject)]
        refused = _refused(answers)
        if len(found) > 1:
            titles = " or ".join(f"{each.kind.title}/{each.name}" for each in found)
            raise errors.Ambiguous(f"job '{namespace}/{name}': found {len(found)} kinds, expected {titles}")
        if not found:
            raise errors.NotFound(f"job '{namespace}/{name}' does not exist", hint="; ".join(refused))
        return found[0]

    async def list(self, namespace: str) -> FoundJobs:
        """The jobs of a namespace, or of all where it is empty; none of a kind that is not installed.

        Raises:
            AccessDenied: no kind may be read.
        """
        asked = [self.of(kind) for kind in kinds().values()]
        answers = await asyncio.gather(*(each.list(namespace) for each in asked), return_exceptions=True)
        jobs = [
            FoundJob(kind, job)
            for kind, answer in zip(kinds().values(), answers, strict=True)
            if not isinstance(answer, BaseException)
            for job in answer
        ]
        misfits = [line for each in asked for line in each.misfits]
        return FoundJobs(sorted(jobs, key=lambda each: each.name), [*_refused(answers), *misfits])

    async def pods_of(self, found: FoundJob) -> Sequence[KubePod]:
        """The pods that the job controls, by their names."""
        meta = found.job.metadata
        labels = found.kind.labels
        selector = f"{labels.group}={labels.group_value},{labels.job}={meta.name}"
        listed = await self.pods.list(meta.namespace, selector)
        own = [pod for pod in listed if (one := pod.metadata.controller) is not None and one.uid == meta.uid]
        return sorted(own, key=lambda pod: pod.metadata.name)


def _refused(answers: Sequence[object]) -> list[str]:
    """What the API server does not let this person read; a kind that is not installed has no jobs.

    Raises:
        StoreError: nothing may be read, or the server did not answer.
    """
    failed = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, NotFound)]
    for error in failed:
        if not isinstance(error, Forbidden):
            raise error
    told = [refusal(error) for error in failed if isinstance(error, Forbidden)]
    if told and len(told) == len(answers):
        raise told[0]
    return [error.message for error in told]
