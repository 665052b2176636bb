"""The objects by which a scheduler of gangs knows a unit's jobs: watched, created, kept as wanted, deleted.

Waiting for a scheduler is a watch and a condition, and no loop of writes. An object that another scheduler's
field was added to is left alone, and one that is as wanted is not written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from farmd.jobs.controller import JobController
from farmd.jobs.model import Gang
from farmd.jobs.objects import ObjectMeta, Owned
from farmd.jobs.resources.podgroups import Flavour, differs, group_body, state
from farmd.jobs.resources.resource import Resource
from farmd.kubernetes.client import Objects
from farmd.kubernetes.controls import told
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.resources import Resource as Kind
from farmd.kubernetes.store import ObjectStore
from farmd.kubernetes.transport import KubernetesTransport
from store.ports import Clock, Rng

BUDGETS = "policy"


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
        if self.flavour.group != BUDGETS and differs({"spec": found.spec}, self._body(engine, of)):
            return "outdated"
        return state(self.flavour, {"status": found.status})

    async def create(self, engine: JobController, of: Resource) -> None:
        """Create a job's object; one that is there already is success.

        Raises:
            ApiFailed: the API server refused, or did not answer.
        """
        if self.flavour.group == BUDGETS:
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
        if self.flavour.group == BUDGETS:
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
