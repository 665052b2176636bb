"""The engine of one kind of job in Kubernetes (Kubeflow's JobController): queue, expectations and handlers.

It finds a job's objects, and creates and deletes them so that no write is repeated before its effect was
seen. What to create and delete is decided by ``plan.py``. The rooms beside it do the work; this one wires
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from farmd.config.kubernetes import RESYNC_SECONDS
from farmd.jobs.facts import Slot
from farmd.kubernetes.jobs import adoption, names
from farmd.kubernetes.jobs.adoption import Adoption, recheck_deletion_timestamp
from farmd.kubernetes.jobs.names import gen_labels, gen_owner_reference, job_key, job_selector
from farmd.kubernetes.jobs.protocols import (
    ApiFailed,
    BudgetControl,
    ControllerInterface,
    EventRecorder,
    Lister,
    PodControl,
    ServiceControl,
)
from farmd.kubernetes.objects import Budget, KubePod, KubeService, Owned, OwnerReference, Tombstone
from farmd.workqueue import WorkQueue
from store.ports import Clock

# What a controller still expects to see of its own writes: creations and deletions, by job, type and
# resource.
#
# A watch lags behind the writes. A job is not looked at again while an expectation of it is open, or the
# controller would create a second time what it does not see yet. An expectation older than five minutes
# counts as met, so that a lost event cannot stop a job.

EXPIRE_SECONDS = 300.0


def gen_expectation_pods_key(job_key: str, replica_type: str) -> str:
    """``ns/bert/worker/pods``."""
    return f"{job_key}/{replica_type.lower()}/pods"


def gen_expectation_services_key(job_key: str, replica_type: str) -> str:
    """``ns/bert/worker/services``."""
    return f"{job_key}/{replica_type.lower()}/services"


@dataclass(slots=True)
class Expectation:
    """How many creations and deletions are still to be seen, since a monotonic time; both may be negative."""

    add: int
    delete: int
    since: float


class ControllerExpectations:
    """The open expectations of one kind of job; two kinds never share one, because keys name no kind."""

    def __init__(self, clock: Clock, expire: float = EXPIRE_SECONDS) -> None:
        self._clock = clock
        self._expire = expire
        self._open: dict[str, Expectation] = {}

    def get(self, key: str) -> Expectation | None:
        """What is expected; None: nothing was."""
        return self._open.get(key)

    def set(self, key: str, add: int, delete: int) -> None:
        """Expect that many from now on, and forget what was expected before."""
        self._open[key] = Expectation(add, delete, self._clock.mono())

    def raise_by(self, key: str, add: int, delete: int) -> None:
        """Expect more. The time starts again, because this is a later write.

        What counted as met, or was seen and not expected, is forgotten: else an event that was lost once
        would delay the job after each later write, and a foreign deletion would hide one of our own.
        """
        before = self._open.get(key)
        if before is None or self.satisfied(key):
            before = Expectation(0, 0, 0.0)
        self.set(key, max(0, before.add) + add, max(0, before.delete) + delete)

    def lower(self, key: str, add: int, delete: int) -> None:
        """Expect less; nothing where nothing was expected."""
        if (known := self._open.get(key)) is not None:
            known.add -= add
            known.delete -= delete

    def creation_observed(self, key: str) -> None:
        """One creation was seen, or did not happen."""
        self.lower(key, 1, 0)

    def deletion_observed(self, key: str) -> None:
        """One deletion was seen."""
        self.lower(key, 0, 1)

    def satisfied(self, key: str) -> bool:
        """Whether nothing is open, or it is too old to wait for."""
        known = self._open.get(key)
        if known is None or (known.add <= 0 and known.delete <= 0):
            return True
        return self._clock.mono() - known.since > self._expire

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._open.pop(key, None)

    def forget_job(self, job_key: str) -> None:
        """Forget all keys of a job that is gone."""
        for key in [key for key in self._open if key.startswith(f"{job_key}/")]:
            del self._open[key]

    def clear(self) -> None:
        """Forget everything: the server went back to an earlier state."""
        self._open.clear()


# The object that stands for a gang where a scheduler reads disruption budgets (kube-batch's first form).


async def sync_pdb(
    controller: ControllerInterface, control: BudgetControl, job: Owned, min_available: int
) -> Budget:
    """The budget of a job's gang, created if it is not there; an existing one is returned as it is.

    Raises:
        ApiFailed: the API server did not tell, or refused.
    """
    namespace, name = job.metadata.namespace, job.metadata.name
    found = await control.get_budget(namespace, name)
    if found is not None:
        return found
    return await control.create_budget(namespace, budget_body(controller, job, min_available))


async def delete_pdb(control: BudgetControl, job: Owned) -> None:
    """Delete the budget of a job's gang; none is fine.

    Raises:
        ApiFailed: the API server did not tell, or refused.
    """
    if await control.get_budget(job.metadata.namespace, job.metadata.name) is not None:
        await control.delete_budget(job.metadata.namespace, job.metadata.name)


def budget_body(controller: ControllerInterface, job: Owned, min_available: int) -> dict[str, Any]:
    """The budget that keeps that many members of a job; it selects them by the job's name alone."""
    owner = gen_owner_reference(controller, job)
    selector = job_selector(controller, job.metadata.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": job.metadata.name,
            "labels": gen_labels(controller, job.metadata.name),
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": selector}},
    }


# What events of a job's pods and services lead to: expectations are met, and the job is queued.
#
# Pods and services are handled alike. What must never break: only an event that was expected lowers an
# expectation, once; an object of another kind wakes nobody, and one of a job that was deleted and made anew
# wakes the new job only by its end, which frees a name.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of one resource; ``expectation`` makes the key of a job's type. ``shared``: the type of an
    object without the label of one; None: such an object is no member.
    """

    controller: ControllerInterface
    expectations: ControllerExpectations
    queue: WorkQueue[str]
    expectation: Callable[[str, str], str]
    shared: str | None = None

    def add(self, each: Owned) -> None:
        """An object appeared. One that leaves already, as after a restart of ours, is no creation."""
        if each.metadata.terminating:
            return
        if (found := self._member(each)) is not None:
            key, kind = found
            self.expectations.creation_observed(self.expectation(key, kind))
            self.queue.add(key)

    def update(self, old: Owned, new: Owned) -> None:
        """An object changed; if its owner did, both jobs are queued."""
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        before, now = old.metadata.controller, new.metadata.controller
        jobs = {self._resolve(old, before) if before != now else None, self._resolve(new, now)}
        for key in sorted(key for key in jobs if key is not None):
            self.queue.add(key)

    def delete(self, each: object) -> None:
        """An object vanished: itself, or a tombstone with its last known state."""
        last = each.object if isinstance(each, Tombstone) else each
        if not hasattr(last, "metadata"):
            log.error("jobs.unknown_deletion", found=type(last).__name__)
            return
        if (found := self._member(last)) is not None:
            key, kind = found
            self.expectations.deletion_observed(self.expectation(key, kind))
            self.queue.add(key)
        elif (namesake := self._namesake(last.metadata.namespace, last.metadata.controller)) is not None:
            self.queue.add(job_key(namesake))

    def _member(self, each: Owned) -> tuple[str, str] | None:
        """The key of its job and its type; None: it is no member of a job of this kind."""
        key = self._resolve(each, each.metadata.controller)
        kind = each.metadata.labels.get(self.controller.get_replica_type_label_key(), self.shared)
        return None if key is None or kind is None else (key, kind)

    def _resolve(self, each: Owned, owner: OwnerReference | None) -> str | None:
        """The key of the job that controls an object; None: none of this kind does."""
        job = self._namesake(each.metadata.namespace, owner)
        return None if job is None or owner is None or job.metadata.uid != owner.uid else job_key(job)

    def _namesake(self, namespace: str, owner: OwnerReference | None) -> Owned | None:
        """The job that has the name of an owner now; None: there is none, or the owner is of another kind."""
        ours = self.controller.get_api_group_version_kind()
        if owner is None or owner.kind != ours.kind or owner.api_version.rpartition("/")[0] != ours.group:
            return None
        return self.controller.get_job_from_informer_cache(namespace, owner.name)


SHARED = ""
"""The type, in expectations, of the service that all members of a job share."""


@dataclass(frozen=True, slots=True)
class JobControllerConfiguration:
    """How all kinds of jobs of a farm are controlled.

    Attributes:
        enable_gang_scheduling: whether members wait for a scheduler of gangs.
        reconciler_sync_loop_period: seconds until a job of which no event told is looked at again.
    """

    enable_gang_scheduling: bool = False
    reconciler_sync_loop_period: float = RESYNC_SECONDS


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
        return names.filter_for_replica_type(self.controller, pods, replica_type)

    def filter_services_for_replica_type(
        self, services: Iterable[KubeService], replica_type: str
    ) -> list[KubeService]:
        """The services of one type."""
        return names.filter_for_replica_type(self.controller, services, replica_type)

    def get_pod_slices(self, pods: Sequence[KubePod], replicas: int) -> list[list[KubePod]]:
        """The pods of one type by index."""
        return names.get_slices(self.controller, pods, replicas)

    def get_service_slices(self, services: Sequence[KubeService], replicas: int) -> list[list[KubeService]]:
        """The services of one type by index."""
        return names.get_slices(self.controller, services, replicas)

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
        return await sync_pdb(self.controller, self.controls.budgets, job, min_available)

    async def delete_pdb(self, job: Owned) -> None:
        """Delete the disruption budget of a job's gang.

        Raises:
            ApiFailed: the API server did not tell, or refused.
        """
        if self.controls.budgets is not None:
            await delete_pdb(self.controls.budgets, job)

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
