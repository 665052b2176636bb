"""The engine of one kind of job in Kubernetes (Kubeflow's JobController): queue, expectations and handlers.

It finds a job's objects, and creates and deletes them so that no write is repeated before its effect was
seen. What to create and delete is decided by ``plan.py``. The rooms beside it do the work; this one wires
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farmd.jobs import adoption, gang, names, slices
from farmd.jobs.adoption import Adoption, recheck_deletion_timestamp
from farmd.jobs.expectations import (
    ControllerExpectations,
    gen_expectation_pods_key,
    gen_expectation_services_key,
)
from farmd.jobs.handlers import Handlers
from farmd.jobs.model import Slot
from farmd.jobs.objects import Budget, KubePod, KubeService, Owned, OwnerReference
from farmd.jobs.ports import (
    ApiFailed,
    BudgetControl,
    ControllerInterface,
    EventRecorder,
    Lister,
    PodControl,
    ServiceControl,
)
from farmd.workqueue import WorkQueue
from store.ports import Clock

SHARED = ""
"""The type, in expectations, of the service that all members of a job share."""


@dataclass(frozen=True, slots=True)
class JobControllerConfiguration:
    """``enable_gang_scheduling``: whether members wait for a scheduler of gangs."""

    enable_gang_scheduling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What a controller writes and reads through; ``budgets`` None: no gang is a disruption budget."""

    pods: PodControl
    services: ServiceControl
    pod_lister: Lister[KubePod]
    service_lister: Lister[KubeService]
    recorder: EventRecorder
    budgets: BudgetControl | None = None


class JobController:
    """One a kind of job: two kinds never share expectations or a queue."""

    def __init__(
        self,
        controller: ControllerInterface,
        config: JobControllerConfiguration,
        controls: Controls,
        clock: Clock,
    ) -> None:
        self.controller = controller
        self.config = config
        self.controls = controls
        self.expectations = ControllerExpectations(clock)
        self.work_queue: WorkQueue[str] = WorkQueue(clock)
        shared = (controller, self.expectations, self.work_queue)
        pods = Handlers(*shared, gen_expectation_pods_key)
        services = Handlers(*shared, gen_expectation_services_key, shared=SHARED)
        self.add_pod, self.update_pod, self.delete_pod = pods.add, pods.update, pods.delete
        self.add_service, self.update_service = services.add, services.update
        self.delete_service = services.delete

    def gen_labels(self, job_name: str) -> dict[str, str]:
        """The selector of a job's objects."""
        return names.gen_labels(self.controller, job_name)

    def gen_owner_reference(self, job: Owned) -> OwnerReference:
        """The owner reference of a job's objects."""
        return names.gen_owner_reference(self.controller, job)

    async def get_pods_for_job(self, job: Owned) -> list[KubePod]:
        """The pods that are a job's; orphans that match are adopted, pods that match no more are released.

        Raises:
            ClaimFailed: some could be neither adopted nor released.
        """

        async def patch(each: KubePod, change: Mapping[str, Any]) -> None:
            await self.controls.pods.patch_pod(each.metadata.namespace, each.metadata.name, change)

        return await self._claim(job, "pod", patch).all(self._candidates(self.controls.pod_lister, job))

    async def get_services_for_job(self, job: Owned) -> list[KubeService]:
        """The services that are a job's, as ``get_pods_for_job``.

        Raises:
            ClaimFailed: some could be neither adopted nor released.
        """

        async def patch(each: KubeService, change: Mapping[str, Any]) -> None:
            await self.controls.services.patch_service(each.metadata.namespace, each.metadata.name, change)

        return await self._claim(job, "service", patch).all(
            self._candidates(self.controls.service_lister, job)
        )

    def filter_pods_for_replica_type(self, pods: Iterable[KubePod], replica_type: str) -> list[KubePod]:
        """The pods of one type."""
        return slices.filter_for_replica_type(self.controller, pods, replica_type)

    def filter_services_for_replica_type(
        self, services: Iterable[KubeService], replica_type: str
    ) -> list[KubeService]:
        """The services of one type."""
        return slices.filter_for_replica_type(self.controller, services, replica_type)

    def get_pod_slices(self, pods: Sequence[KubePod], replicas: int) -> list[list[KubePod]]:
        """The pods of one type by index."""
        return slices.get_slices(self.controller, pods, replicas)

    def get_service_slices(self, services: Sequence[KubeService], replicas: int) -> list[list[KubeService]]:
        """The services of one type by index."""
        return slices.get_slices(self.controller, services, replicas)

    def satisfied(self, job: Owned, types: Iterable[str]) -> bool:
        """Whether the effects of all writes to a job were seen, so that it may be looked at."""
        key = names.job_key(job)
        makers = (gen_expectation_pods_key, gen_expectation_services_key)
        keys = (make(key, kind) for kind in (SHARED, *types) for make in makers)
        return all(map(self.expectations.satisfied, keys))

    async def create_pod(self, job: Owned, slot: Slot, body: Mapping[str, Any]) -> KubePod:
        """Create the pod of a slot.

        Raises:
            ApiFailed: it was refused, or may exist all the same (``unknown``), which stays expected.
        """
        key = gen_expectation_pods_key(names.job_key(job), slot.type)
        self.expectations.raise_by(key, 1, 0)
        try:
            return await self.controls.pods.create_pod(job.metadata.namespace, body)
        except ApiFailed as error:
            if not error.unknown:
                self.expectations.creation_observed(key)
            self.controls.recorder.event(job, "Warning", "FailedCreatePod", f"{slot}: {error}")
            raise

    async def create_service(self, job: Owned, replica_type: str, body: Mapping[str, Any]) -> KubeService:
        """Create a service of a type's slot, or of ``SHARED``.

        Raises:
            ApiFailed: as ``create_pod``.
        """
        key = gen_expectation_services_key(names.job_key(job), replica_type)
        self.expectations.raise_by(key, 1, 0)
        try:
            return await self.controls.services.create_service(job.metadata.namespace, body)
        except ApiFailed as error:
            if not error.unknown:
                self.expectations.creation_observed(key)
            self.controls.recorder.event(job, "Warning", "FailedCreateService", str(error))
            raise

    async def remove_pod(self, job: Owned, slot: Slot, pod: KubePod) -> None:
        """Delete a pod in the version that was seen; one that leaves already is left alone.

        Raises:
            ApiFailed: it was refused, or may be deleted all the same (``unknown``), which stays expected.
        """
        meta = pod.metadata
        if meta.terminating:
            return
        key = gen_expectation_pods_key(names.job_key(job), slot.type)
        self.expectations.raise_by(key, 0, 1)
        try:
            await self.controls.pods.delete_pod(
                meta.namespace, meta.name, uid=meta.uid, version=meta.resource_version
            )
        except ApiFailed as error:
            if not error.unknown:
                self.expectations.deletion_observed(key)
            self.controls.recorder.event(job, "Warning", "FailedDeletePod", f"{meta.name}: {error}")
            raise

    def forget(self, job: Owned) -> None:
        """Forget a job that is gone."""
        key = names.job_key(job)
        self.expectations.forget_job(key)
        self.work_queue.forget(key)

    async def sync_pdb(self, job: Owned, min_available: int) -> Budget | None:
        """The disruption budget of a job's gang; None: gangs are off, or are no budgets.

        Raises:
            ApiFailed: the API server did not tell, or refused.
        """
        if not self.config.enable_gang_scheduling or self.controls.budgets is None:
            return None
        return await gang.sync_pdb(self.controller, self.controls.budgets, job, min_available)

    async def delete_pdb(self, job: Owned) -> None:
        """Delete the disruption budget of a job's gang.

        Raises:
            ApiFailed: the API server did not tell, or refused.
        """
        if self.controls.budgets is not None:
            await gang.delete_pdb(self.controls.budgets, job)

    def _claim(self, job: Owned, noun: str, patch: adoption.Patch[Any]) -> Adoption[Any]:
        meta = job.metadata

        async def fresh() -> Owned | None:
            return await self.controller.get_job_from_api_client(meta.namespace, meta.name)

        return Adoption(
            job=job,
            owner=self.gen_owner_reference(job),
            labels=self.gen_labels(meta.name),
            noun=noun,
            can_adopt=recheck_deletion_timestamp(fresh, meta.uid),
            patch=patch,
        )

    def _candidates(self, lister: Lister[Any], job: Owned) -> list[Any]:
        """The objects that are the job's, or could become so."""
        owned = lister.owned_by(job.metadata.uid)
        return [*owned, *lister.orphans(job.metadata.namespace, self.gen_labels(job.metadata.name))]
