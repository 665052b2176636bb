"""One kind of job in one cluster, or in one namespace of it: what is watched, and the engine that acts on it.

The stores of jobs, pods and services each follow one informer; the handlers of ``JobController`` hear of each
change of pods and services, and its queue says which job is due.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from farmd.jobs.controller import Controls, JobController, JobControllerConfiguration
from farmd.jobs.names import job_key
from farmd.jobs.objects import Budget, KubePod, KubeService, ObjectMeta, Owned, seconds_since_epoch
from farmd.jobs.resources.conditions import ResourceStatus
from farmd.jobs.resources.kindfile import JobKind, KindFile
from farmd.jobs.resources.podgroups import Flavour
from farmd.kubernetes.client import Objects
from farmd.kubernetes.controls import Budgets, PodRequests, Services, told
from farmd.kubernetes.events import Events
from farmd.kubernetes.gangs import Groups
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.resources import BUDGETS, PODS, SERVICES, Resource
from farmd.kubernetes.store import ObjectStore, ObjectT
from farmd.kubernetes.transport import KubernetesTransport
from store.errors import InputInvalid
from store.ports import Clock, Rng


class _Writing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    subresource: str = ""
    time: str | None = None


class JobMeta(ObjectMeta, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A job's metadata, with when it was written, and not what."""

    managed_fields: tuple[_Writing, ...] = ()


class JobObject(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the API server has it; all but its metadata is decoded only when the job is looked at."""

    metadata: JobMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status_text: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="status")

    @property
    def asked_at(self) -> float:
        """When somebody changed it last, by the API server's clock; farms write its status alone."""
        writings = self.metadata.managed_fields
        return max((seconds_since_epoch(each.time) for each in writings if not each.subresource), default=0.0)

    @property
    def status(self) -> ResourceStatus:
        """Its status; other controllers write an empty field as null.

        Raises:
            InputInvalid: it does not decode.
        """
        try:
            found = msgspec.convert(_without_nulls(msgspec.json.decode(self.status_text)), ResourceStatus)
        except msgspec.ValidationError as error:
            raise InputInvalid(f"status: {error}", field="status") from error
        return found


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _without_nulls(each) for name, each in data.items() if each is not None}
    return data


class Handled:
    """A listener of a store that calls the handlers of an engine."""

    def __init__(
        self,
        added: Callable[[Owned], None],
        updated: Callable[[Owned, Owned], None],
        deleted: Callable[[Any], None],
        reset: Callable[[], None],
    ) -> None:
        self.added, self.updated, self.deleted, self.reset = added, updated, deleted, reset


def latest(seen: Callable[[Any], None]) -> Callable[[Any, Any], None]:
    """For a listener that looks at the new state of a changed object alone."""
    return lambda _, new: seen(new)


class Unit:
    """A kind's jobs in one namespace (empty: in all). ``validity``: see ``Objects``."""

    def __init__(
        self,
        data: KindFile,
        namespace: str,
        transport: KubernetesTransport,
        validity: Callable[[], float],
        *,
        clock: Clock,
        rng: Rng,
        gang: Flavour | None = None,
        init_image: str = "",
    ) -> None:
        self.data, self.namespace, self.init_image = data, namespace, init_image
        self.resource = Resource(data.group, data.version, data.plural, data.kind)
        self.jobs: ObjectStore[JobObject] = ObjectStore()
        self.pods: ObjectStore[KubePod] = ObjectStore()
        self.services: ObjectStore[KubeService] = ObjectStore()
        self.objects = Objects(transport, self.resource, JobObject, "jobs", validity, self.jobs)
        self.pod_objects = Objects(transport, PODS, KubePod, "pods", validity, self.pods)
        self.service_objects = Objects(transport, SERVICES, KubeService, "services", validity, self.services)
        budgets = Objects(transport, BUDGETS, Budget, "other", validity)
        self.events = Events(transport, self.resource, clock)
        self.engine = JobController(
            JobKind(data, self.jobs.get, self._fetch),
            JobControllerConfiguration(enable_gang_scheduling=gang is not None),
            Controls(
                pods=PodRequests(self.pod_objects),
                services=Services(self.service_objects),
                pod_lister=self.pods,
                service_lister=self.services,
                recorder=self.events,
                budgets=Budgets(budgets),
            ),
            clock,
        )
        self.generation = 0
        chosen = f"{data.labels.group}={data.labels.group_value}"
        self.groups: Groups | None = None
        if gang is not None:
            self.groups = Groups(gang, namespace, chosen, transport, validity, clock=clock, rng=rng)
        self._listen()

        def informer(source: Source, kind: type[ObjectT], store: ObjectStore[ObjectT]) -> Informer[ObjectT]:
            return Informer(transport, source, kind, store, clock=clock, rng=rng)

        self.informers: Sequence[Informer[Any]] = (
            informer(Source(self.resource, namespace, label="jobs"), JobObject, self.jobs),
            informer(Source(PODS, namespace, chosen, "pods"), KubePod, self.pods),
            informer(Source(SERVICES, namespace, chosen, "services"), KubeService, self.services),
            *([] if self.groups is None else [self.groups.informer]),
        )

    @property
    def synced(self) -> bool:
        """Whether all resources were read."""
        return all(informer.synced for informer in self.informers)

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The informers, and what sends events."""
        yield self.events.run()
        jobs, *members = self.informers
        yield self._after(members, jobs)
        for informer in members:
            yield informer.run()

    async def _after(self, members: Sequence[Informer[Any]], jobs: Informer[Any]) -> None:
        """Jobs are known once their members are, so that a farm claims none whose members it cannot see."""
        for informer in members:
            await informer.until_synced()
        await jobs.run()

    def _listen(self) -> None:
        engine = self.engine
        self.pods.listen(Handled(engine.add_pod, engine.update_pod, engine.delete_pod, self._reset))
        services = (engine.add_service, engine.update_service, engine.delete_service)
        self.services.listen(Handled(*services, self._reset))
        self.jobs.listen(Handled(self._queue, latest(self._queue), self._forget, self._reset))

        if self.groups is not None:
            wake = self._queue  # an object of a gang has its job's name
            self.groups.store.listen(Handled(wake, latest(wake), wake, self._reset))

    def _queue(self, job: Any) -> None:
        self.engine.work_queue.add(job_key(job))

    def _forget(self, job: object) -> None:
        assert isinstance(job, JobObject)
        self.engine.forget(job)

    def _reset(self) -> None:
        """The server was restored, whichever watch learns of it first: every job's next write is a fence."""
        self.generation += 1
        self.engine.expectations.clear()

    async def _fetch(self, namespace: str, name: str) -> JobObject | None:
        async with told():
            return await self.objects.get(namespace, name)
