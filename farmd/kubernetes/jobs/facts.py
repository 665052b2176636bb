"""The facts of one job in Kubernetes, from the watches, and the writes of its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from farmd.jobs.facts import ANYWHERE, KUBERNETES, Member, Plan, ServiceKey, Slot, Snapshot, attempt_of
from farmd.jobs.progress import template_changed
from farmd.kubernetes.client import Objects
from farmd.kubernetes.jobs import bodies, resource
from farmd.kubernetes.jobs.controller import SHARED, JobController
from farmd.kubernetes.jobs.names import gen_general_name, gen_labels, index_of, job_key
from farmd.kubernetes.jobs.podgroups import mark
from farmd.kubernetes.jobs.pods import member_of, troubles
from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.jobs.report import ResourceStatus, patch_of, run_of, status_of
from farmd.kubernetes.jobs.resource import Resource
from farmd.kubernetes.jobs.unit import JobObject, Unit
from farmd.kubernetes.objects import KubePod, KubeService, OwnerReference
from store.jobs import Run

# The pods and services of a job in Kubernetes as the plan sees them: members, strays, services by slot.


def members_of(
    engine: JobController, of: Resource, pods: Sequence[KubePod]
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """The members of a job, and its pods with an unknown slot."""
    members: list[Member] = []
    for kind in of.job.types:
        own = engine.filter_pods_for_replica_type(pods, kind.name)
        for index, found in enumerate(engine.get_pod_slices(own, kind.replicas)):
            members += [member_of(pod, Slot(kind.name, index), of.kind.container) for pod in found]
    known = {member.id for member in members}
    others = [_other(engine, pod) for pod in pods if pod.metadata.uid not in known]
    strays = [stray for _, stray in others if stray is not None]
    beyond = [member for member, stray in others if stray is None]
    return (*members, *beyond), tuple(strays)


def _other(engine: JobController, pod: KubePod) -> tuple[Member, Member | None]:
    """A pod outside of the job's slots: of a type that is gone, with a negative index, or a stray."""
    name = pod.metadata.labels.get(engine.controller.get_replica_type_label_key())
    index = index_of(engine.controller, pod)
    member = member_of(pod, Slot(name or "", -1 if index is None else index))
    return member, member if name is None or index is None else None


def services_of(
    engine: JobController, of: Resource, services: Iterable[KubeService]
) -> dict[ServiceKey, KubeService]:
    """The services of a job by slot; the one with the job's name is the one that all members share."""
    found: dict[ServiceKey, KubeService] = {}
    spelled = {kind.name.lower(): kind.name for kind in of.job.types}
    for service in services:
        name = service.metadata.labels.get(engine.controller.get_replica_type_label_key())
        index = index_of(engine.controller, service)
        if service.metadata.name == of.metadata.name:
            found[None] = service
        elif name is not None and index is not None:
            found[Slot(spelled.get(name, name), index)] = service
    return found


# One job in Kubernetes: its snapshot, from the watches, and the writes of a plan (the ``kubejobs``
# backend).
#
# What must never break: the job's status is written, conditional on the version that was planned from,
# before a claim's first other write (R16); the verdict before anything is deleted; the run before a member
# goes for its retry. Names of pods are fixed by the slot, and deletions carry uid and version, so what two
# farms do at once meets.

MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Facts:
    """A job of a ``unit`` at one moment, with its ``status`` as the API server has it; ``pods`` by uid."""

    unit: Unit
    job: JobObject
    status: ResourceStatus
    resource: Resource
    snapshot: Snapshot
    pods: Mapping[str, KubePod]
    services: Mapping[ServiceKey, KubeService]


@dataclass(frozen=True, slots=True)
class Freeze:
    """What freezes removals (R18): the evidence, empty without a freeze; ``commanded``: see ``Snapshot``."""

    evidence: str = ""
    commanded: bool = False


async def read(
    unit: Unit,
    job: JobObject,
    spec: Any,
    status: ResourceStatus,
    run: Run,
    now: float,
    invalid: str,
    freeze: Freeze,
) -> Facts:
    """The job with its members; ``spec`` and ``status`` are its own, decoded. ``invalid``: why the API server
    takes none of its members.

    Raises:
        InputInvalid: the resource cannot be a job. ClaimFailed: a pod can be neither adopted nor released.
    """
    raw = {"metadata": msgspec.to_builtins(job.metadata), "spec": spec}
    found = resource.read(unit.data, raw, gangs=unit.groups is not None)
    pods = await unit.engine.get_pods_for_job(job)
    services = services_of(unit.engine, found, await unit.engine.get_services_for_job(job))
    members, strays = members_of(unit.engine, found, pods)
    for trouble in (each for pod in pods for each in troubles(pod)):
        unit.engine.controls.recorder.event(job, "Warning", trouble.reason, trouble.message)
    if changed := bodies.altered(unit.engine, found, pods):
        unit.engine.controls.recorder.event(job, "Warning", "TemplateChanged", template_changed(changed))
    snapshot = Snapshot(
        job=replace(found.job, invalid=invalid) if invalid else found.job,
        traits=KUBERNETES,
        run=run_of(status, run),
        members=members,
        strays=strays,
        room=ANYWHERE,
        gang="none" if unit.groups is None else unit.groups.state(unit.engine, found),
        altered=changed,
        services=frozenset(services),
        now=now,
        frozen=freeze.evidence,
        commanded=freeze.commanded,
    )
    by_uid = {pod.metadata.uid: pod for pod in pods}
    return Facts(unit, job, status, found, snapshot, by_uid, services)


def status_after(reading: Facts, plan: Plan) -> ResourceStatus:
    """What the job's status becomes by a plan."""
    run = plan.run if plan.run is not None else reading.snapshot.run
    name, now = reading.job.metadata.name, reading.snapshot.now
    selectors = _selectors(reading) if reading.resource.training.elastic_policy is not None else {}
    return status_of(reading.status, name, run, plan.status, plan.blocked, now, selectors)


def _selectors(reading: Facts) -> dict[str, str]:
    """The labels of each type's pods, as the scale subresource of the kind tells them to an autoscaler."""
    controller, found = reading.unit.engine.controller, dict[str, str]()
    for each in reading.resource.job.types:
        labels = gen_labels(controller, reading.job.metadata.name)
        labels |= {controller.get_replica_type_label_key(): each.name.lower()}
        found[each.name] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return found


def outside(reading: Facts, plan: Plan) -> object:
    """What a plan does at the API server, to compare it with what was refused before: also whose pods bear
    the names of those that it creates, because the end of one that does is no try like the one before.
    """
    unit, meta = reading.unit, reading.job.metadata
    names = (gen_general_name(meta.name, slot.type, str(slot.index)) for slot in plan.create)
    there = tuple(pod.metadata.uid for name in names if (pod := unit.pods.get(meta.namespace, name)))
    removed = tuple(each.id for each in plan.remove)
    services = plan.drop_services, plan.create_services
    return reading.job.spec, plan.gang, services, removed, plan.create, there, plan.delete_job


async def write_status(unit: Unit, job: JobObject, after: ResourceStatus) -> JobObject:
    """Write a status if the job is still the version that was read.

    Raises:
        Conflict: it is not; nothing was written.
    """
    patch = patch_of(job.status, after) or {"status": {"claim": after.claim}}
    meta = job.metadata
    return await unit.objects.patch(
        meta.namespace,
        meta.name,
        patch,
        version=meta.resource_version,
        subresource="status",
        key=meta.uid,
    )


async def sync_gang(reading: Facts, plan: Plan) -> None:
    """Create, keep or delete the object of the job's gang.

    Raises:
        ApiFailed: the API server refused, or did not answer.
    """
    unit = reading.unit
    if unit.groups is None:
        return
    if plan.gang == "create":
        await unit.groups.create(unit.engine, reading.resource)
    elif plan.gang == "update":
        await unit.groups.update(unit.engine, reading.resource)
    elif plan.gang == "delete":
        await unit.groups.delete(unit.engine, reading.job)


async def remove(reading: Facts, plan: Plan) -> None:
    """Delete the plan's services and members.

    Raises:
        ApiFailed: one could not be deleted; the others were.
    """
    unit = reading.unit
    services = [reading.services[key] for key in plan.drop_services if key in reading.services]
    work = [_drop(unit, each) for each in services if not each.metadata.terminating]
    work += [unit.engine.remove_pod(reading.job, each.slot, reading.pods[each.id]) for each in plan.remove]
    _first(await asyncio.gather(*work, return_exceptions=True))


async def create(reading: Facts, plan: Plan) -> None:
    """Create the plan's services, then its members: 1, 2, 4 … at once, none after one that was refused.

    Raises:
        ApiFailed: one was refused, or nobody knows whether it was made.
    """
    unit = reading.unit
    for key in plan.create_services:
        body = bodies.service_body(unit.engine.controller, reading.resource, key)
        making = unit.engine.create_service(reading.job, SHARED if key is None else key.type, body)
        await _unless_there(unit, reading.job, making, unit.service_objects, body["metadata"]["name"])
    run = plan.run if plan.run is not None else reading.snapshot.run
    slots, width = list(plan.create), 1
    while slots:
        batch, slots = slots[:width], slots[width:]
        made = [_create_pod(reading, slot, attempt_of(run, slot)) for slot in batch]
        _first(await asyncio.gather(*made, return_exceptions=True))
        width = min(width * 2, MOST_AT_ONCE)


async def delete_job(unit: Unit, job: JobObject) -> None:
    """Delete a job in the version that was read; the API server deletes what it owns."""
    meta = job.metadata
    await unit.objects.delete(
        meta.namespace,
        meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        cascade="Background",
        key=meta.uid,
    )


async def settle(reading: Facts, plan: Plan) -> None:
    """Read what became of a plan's writes of which one was not answered, and expect nothing any more.

    An object that is there enters the store of its watch by this; what was not done is done again.
    """
    unit, meta = reading.unit, reading.job.metadata
    for name in _untold(reading, plan):
        await unit.pod_objects.get(meta.namespace, name, meta.uid)
    for key in plan.create_services:
        body = bodies.service_body(unit.engine.controller, reading.resource, key)
        await unit.service_objects.get(meta.namespace, body["metadata"]["name"], meta.uid)
    unit.engine.expectations.forget_job(job_key(reading.job))


def _untold(reading: Facts, plan: Plan) -> set[str]:
    """The pods of a plan of which only the server can tell; those whose creation was answered, or told by the
    watch, are known: a job may have thousands.
    """
    meta = reading.job.metadata
    names = {slot: gen_general_name(meta.name, slot.type, str(slot.index)) for slot in plan.create}
    known = {slot: reading.unit.pods.get(meta.namespace, name) for slot, name in names.items()}
    made = {slot for slot, pod in known.items() if pod is not None and pod.metadata.uid not in reading.pods}
    removed = {gen_general_name(meta.name, each.slot.type, str(each.slot.index)) for each in plan.remove}
    return {name for slot, name in names.items() if slot not in made} | removed


async def _create_pod(reading: Facts, slot: Slot, attempt: int) -> None:
    unit = reading.unit
    body = bodies.pod_body(unit.engine.controller, reading.resource, slot, attempt, unit.init_image)
    if unit.groups is not None and (other := mark(unit.groups.flavour, reading.resource, slot, body)):
        text = f"{slot} names the scheduler {other}, which does not support gangs"
        unit.engine.controls.recorder.event(reading.job, "Warning", "SettedPodTemplateSchedulerName", text)
    making = unit.engine.create_pod(reading.job, slot, body)
    await _unless_there(unit, reading.job, making, unit.pod_objects, body["metadata"]["name"])


async def _unless_there(
    unit: Unit, job: JobObject, making: Awaitable[object], objects: Objects[Any], name: str
) -> None:
    """Wait for a creation; an object that has the name already must be the job's.

    Raises:
        ApiFailed: another owner's has it; its end wakes the job, if its owner had the job's name.
    """
    try:
        await making
    except ApiFailed as error:
        if error.reason != "AlreadyExists":
            raise
        there = await objects.get(job.metadata.namespace, name, job.metadata.uid)
        if there is None:
            return
        owner: OwnerReference | None = there.metadata.controller
        if owner is not None and owner.uid == job.metadata.uid:
            return
        whose = "no owner" if owner is None else f"{owner.kind} {owner.name}"
        if owner is not None and (owner.kind, owner.name) == (unit.resource.kind, job.metadata.name):
            whose = "a deleted job"
        text = f"waits for {job.metadata.namespace}/{name} of {whose}, which has that name"
        raise ApiFailed(text, status=409, reason="NameTaken") from error


async def _drop(unit: Unit, service: KubeService) -> None:
    meta = service.metadata
    control = unit.engine.controls.services
    await control.delete_service(meta.namespace, meta.name, uid=meta.uid, version=meta.resource_version)


def _first(outcomes: Sequence[Any]) -> None:
    """Raise the first failure, if there is any."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
