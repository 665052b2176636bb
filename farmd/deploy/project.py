"""The plan of several services that are deployed together: pure.

What must never break: it is made on one state of the cluster, each service after those that it needs, so that
no two services count on the same room, and no volume is planned that another service cannot reach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from farmd.deploy.model import ServiceSpec
from farmd.deploy.operations import CreateVolumeOperation, Plan
from farmd.deploy.placing import request_of, volumes_of
from farmd.deploy.strategy import RollingStrategy, Service
from scheduler.cluster import ClusterState
from scheduler.volumes import VolumeScheduler, VolumeUser
from store.errors import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Services to deploy, resolved, by name.

    ``after``: for each those that it needs first. ``external``: volumes that must exist. ``together``: the
    project whose services stand on one machine; empty: they may spread.
    """

    services: Mapping[str, ServiceSpec]
    after: Mapping[str, Collection[str]] = field(default_factory=dict)
    external: frozenset[str] = frozenset()
    together: str = ""


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """Volumes to make, then a plan for each service, in order; ``standing``: the services as they are."""

    volumes: tuple[CreateVolumeOperation, ...] = ()
    services: tuple[Plan, ...] = ()
    standing: Mapping[str, Service] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether all is as it should be."""
        return not self.volumes and not any(plan.operations for plan in self.services)


def plan_project(
    state: ClusterState, wanted: Wanted, standing: Mapping[str, Service], strategy: RollingStrategy
) -> ProjectPlan:
    """Plan the services of a project.

    Raises:
        Conflict: a service that stands in the other mode.
        NoMachine, VolumeRefused: a service or a volume that finds no machine.
    """
    for name, spec in wanted.services.items():
        if name in standing and standing[name].mode != spec.mode:
            raise Conflict(
                f"services.{name}: mode: found {spec.mode!r}, expected {standing[name].mode!r}: a service"
                " keeps its mode; delete it first, or give the new one another name",
                field="mode",
            )
    names = ordered(wanted.services, wanted.after)
    pinned = [name for name in names if wanted.together or wanted.services[name].mounted()]
    users = [_user(wanted, name, standing.get(name)) for name in pinned]
    schedule = VolumeScheduler(state, users).schedule()
    known = {each.volume_name: each for spec in wanted.services.values() for each in spec.mounted()}
    volumes = [
        CreateVolumeOperation(machine, known[volume.name])
        for machine, made in schedule.create.items()
        for volume in made
    ]
    plans = [
        strategy.plan(state, standing.get(name), wanted.services[name], schedule.machines.get(name))
        for name in names
    ]
    return ProjectPlan(
        tuple(volumes), tuple(plans), {name: standing[name] for name in names if name in standing}
    )


def ordered(services: Mapping[str, object], after: Mapping[str, Collection[str]]) -> list[str]:
    """The services, each behind those that it needs, else in the order of their names; without circles."""
    found: dict[str, None] = {}
    waiting = sorted(services, reverse=True)
    while waiting:
        name = waiting.pop()
        missing = [other for other in after.get(name, ()) if other in services and other not in found]
        if missing and name not in found:
            waiting += [name, *sorted(missing, reverse=True)]
        else:
            found[name] = None
    return list(found)


def _user(wanted: Wanted, name: str, standing: Service | None) -> VolumeUser:
    spec = wanted.services[name]
    machines: Sequence[str] = [pod.place[0] for pod in standing.containers] if standing is not None else []
    return VolumeUser(
        service=name,
        request=request_of(spec, standing.id if standing is not None else ""),
        volumes=volumes_of(spec, wanted.external),
        everywhere=spec.mode == "global",
        together="" if spec.mode == "global" else wanted.together,
        standing=machines,
    )
