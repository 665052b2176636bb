"""The pods and services of a job in Kubernetes as the plan sees them: members, strays, services by slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farmd.jobs.controller import JobController
from farmd.jobs.model import Member, ServiceKey, Slot
from farmd.jobs.objects import KubePod, KubeService
from farmd.jobs.resources.podview import member_of
from farmd.jobs.resources.resource import Resource
from farmd.jobs.slices import index_of


def members_of(
    engine: JobController, of: Resource, pods: Sequence[KubePod]
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """The members of a job, and its pods whose slot nobody can tell."""
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
