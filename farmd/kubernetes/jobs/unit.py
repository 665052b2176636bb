"""One kind of job in one cluster, or in one namespace of it: what is watched, and the engine that acts on it.

The stores of jobs, pods and services each follow one informer; the handlers of ``JobController`` hear of each
change of pods and services, and its queue says which job is due.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from farmd.jobs.facts import Gang
from farmd.kubernetes.client import STRATEGIC_PATCH, Objects
from farmd.kubernetes.errors import KubernetesError, UnknownOutcome
from farmd.kubernetes.events import Events
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.jobs.controller import Controls, JobController, JobControllerConfiguration
from farmd.kubernetes.jobs.kindfile import JobKind, KindFile
from farmd.kubernetes.jobs.names import job_key
from farmd.kubernetes.jobs.podgroups import Flavour, differs, group_body, state
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.jobs.report import ResourceStatus
from farmd.kubernetes.jobs.resource import Resource
from farmd.kubernetes.objects import (
    BUDGETS,
    PODS,
    SERVICES,
    Budget,
    KubePod,
    KubeService,
    ObjectMeta,
    Owned,
    seconds_since_epoch,
)
from farmd.kubernetes.objects import Resource as Kind
from farmd.kubernetes.store import ObjectStore, ObjectT
from farmd.kubernetes.transport import KubernetesTransport
from store.errors import InputInvalid
from store.ports import Clock, Rng

# The ports of ``farmd.jobs`` onto an API server: control of pods, services and disruption budgets.


@asynccontextmanager
async def told() -> AsyncIterator[None]:
    """Tell a refusal as the port's ``ApiFailed``."""
    try:
        yield
    except KubernetesError as error:
        unknown = isinstance(error, UnknownOutcome)
        raise ApiFailed(error.message, status=error.status, reason=error.reason, unknown=unknown) from error


class PodRequests:
    """``farmd.kubernetes.jobs.protocols.PodControl``."""

    def __init__(self, objects: Objects[KubePod]) -> None:
        self._objects = objects

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> KubePod:
        """Create a pod of this body."""
        async with told():
            return await self._objects.create(namespace, body, _job(body))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the pod if it has this uid and this version; one that is gone is no failure."""
        async with told():
            await self._objects.delete(namespace, name, uid=uid, version=version)

    async def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""
        async with told():
            await self._objects.patch(namespace, name, patch, content_type=STRATEGIC_PATCH)


class Services:
    """``farmd.kubernetes.jobs.protocols.ServiceControl``."""

    def __init__(self, objects: Objects[KubeService]) -> None:
        self._objects = objects

    async def create_service(self, namespace: str, body: Mapping[str, Any]) -> KubeService:
        """Create a service of this body."""
        async with told():
            return await self._objects.create(namespace, body, _job(body))

    async def delete_service(self, namespace: str, name: str, *, uid: str, version: str) -> None:
        """Delete the service if it has this uid and this version; one that is gone is no failure."""
        async with told():
            await self._objects.delete(namespace, name, uid=uid, version=version)

    async def patch_service(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch."""
        async with told():
            await self._objects.patch(namespace, name, patch, content_type=STRATEGIC_PATCH)


class Budgets:
    """``farmd.kubernetes.jobs.protocols.BudgetControl``."""

    def __init__(self, objects: Objects[Budget]) -> None:
        self._objects = objects

    async def get_budget(self, namespace: str, name: str) -> Budget | None:
        """The budget as the API server has it; None: there is none."""
        async with told():
            return await self._objects.get(namespace, name)

    async def create_budget(self, namespace: str, body: Mapping[str, Any]) -> Budget:
        """Create a budget of this body."""
        async with told():
            return await self._objects.create(namespace, body)

    async def delete_budget(self, namespace: str, name: str) -> None:
        """Delete the budget."""
        async with told():
            if (found := await self._objects.get(namespace, name)) is not None:
                meta = found.metadata
                await self._objects.delete(namespace, name, uid=meta.uid, version=meta.resource_version)


def _job(body: Mapping[str, Any]) -> str:
    """The uid of the job that a body belongs to: requests of jobs take turns."""
    owners = body["metadata"].get("ownerReferences") or ({"uid": ""},)
    return str(owners[0]["uid"])


# The objects by which a scheduler of gangs knows a unit's jobs: watched, created, kept as wanted, deleted.
#
# Waiting for a scheduler is a watch and a condition, and no loop of writes. An object that another
# scheduler's field was added to is left alone, and one that is as wanted is not written again.

POLICY_GROUP = "policy"


class GroupObject(msgspec.Struct, frozen=True, kw_only=True):
    """The object of one gang."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class Groups:
    """The gangs of one kind of job in one namespace (empty: in all), in the words of one flavour."""

    def __init__(
        self,
        flavour: Flavour,
        namespace: str,
        chosen: str,
        transport: KubernetesTransport,
        validity: Callable[[], float],
        *,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self.flavour = flavour
        kind = Kind(flavour.group, flavour.version, flavour.plural, flavour.kind)
        self.store: ObjectStore[GroupObject] = ObjectStore()
        self._objects = Objects(transport, kind, GroupObject, "other", validity, self.store)
        source = Source(kind, namespace, chosen, "other")
        self.informer = Informer(transport, source, GroupObject, self.store, clock=clock, rng=rng)

    def of(self, job: Owned) -> GroupObject | None:
        """The object of a job's gang; None: there is none. One that leaves already is none."""
        found = self.store.get(job.metadata.namespace, job.metadata.name)
        return None if found is None or found.metadata.terminating else found

    def state(self, engine: JobController, of: Resource) -> Gang:
        """What the scheduler made of a job's gang, or that its object is not as the job asks."""
        found = self.of(of)
        if found is None:
            return "absent"
        if self.flavour.group != POLICY_GROUP and differs({"spec": found.spec}, self._body(engine, of)):
            return "outdated"
        return state(self.flavour, {"status": found.status})

    async def create(self, engine: JobController, of: Resource) -> None:
        """Create a job's object; one that is there already is success.

        Raises:
            ApiFailed: the API server refused, or did not answer.
        """
        if self.flavour.group == POLICY_GROUP:
            await engine.sync_pdb(of, of.members)
            return
        body = self._body(engine, of)
        async with told():
            if await self._objects.get(of.metadata.namespace, of.metadata.name, of.metadata.uid) is None:
                await self._objects.create(of.metadata.namespace, body, of.metadata.uid)

    async def update(self, engine: JobController, of: Resource) -> None:
        """Bring the object's spec to what the job asks now, as after a change of its replicas.

        Raises:
            ApiFailed: the API server refused, or did not answer.
        """
        if (found := self.of(of)) is not None:
            meta, changed = found.metadata, differs({"spec": found.spec}, self._body(engine, of))
            async with told():
                await self._objects.patch(
                    meta.namespace,
                    meta.name,
                    {"spec": changed},
                    version=meta.resource_version,
                    key=of.metadata.uid,
                )

    async def delete(self, engine: JobController, job: Owned) -> None:
        """Delete a job's object, in the version that is known.

        Raises:
            ApiFailed: the API server refused, or did not answer.
        """
        if self.flavour.group == POLICY_GROUP:
            await engine.delete_pdb(job)
        elif (found := self.of(job)) is not None:
            meta = found.metadata
            async with told():
                await self._objects.delete(
                    meta.namespace,
                    meta.name,
                    uid=meta.uid,
                    version=meta.resource_version,
                    key=job.metadata.uid,
                )

    def _body(self, engine: JobController, of: Resource) -> dict[str, Any]:
        return group_body(self.flavour, engine.controller, of)


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
        config: JobControllerConfiguration,
        *,
        clock: Clock,
        rng: Rng,
        gang: Flavour | None = None,
        init_image: str = "",
    ) -> None:
        self.data, self.namespace, self.init_image = data, namespace, init_image
        self.resource = Kind(data.group, data.version, data.plural, data.kind)
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
            config,
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
