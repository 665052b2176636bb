"""The plan of several services that are deployed together: pure.

What must never break: it is made on one state of the cluster, each service after those that it needs, so that
no two services count on the same room, and no volume is planned that another service cannot reach.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from farmd.deploy.manifest import request_of, volumes_of
from farmd.deploy.operations import (
    CreateVolumeOperation,
    Plan,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    StandingService,
    StopContainerOperation,
)
from farmd.deploy.spec import ServiceSpec
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from scheduler.volumes import Schedule, VolumeScheduler, VolumeUser
from store import codec
from store.deployments import PROJECT_LABEL, Condition
from store.errors import Conflict
from store.manifests import PodAffinity


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedServices:
    """Services to deploy, resolved, by name.

    ``after``: for each those that it needs first, and how far these must be. ``external``: volumes that must
    exist. ``together``: the project whose services stand on one machine; empty: they may spread.
    ``removed``: services, by name, that are to go. ``restored``: those that become what they were once, so
    that a command which ended well then does not run again.
    """

    services: Mapping[str, ServiceSpec]
    after: Mapping[str, Mapping[str, Condition]] = field(default_factory=dict)
    external: frozenset[str] = frozenset()
    together: str = ""
    removed: Collection[str] = ()
    restored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """Volumes to make, then a plan for each service, in order, those that are to go last.

    ``specs`` is what was planned: what was wanted, with what the machines decide. ``standing``: the services
    as they are.
    """

    volumes: tuple[CreateVolumeOperation, ...] = ()
    services: tuple[Plan, ...] = ()
    specs: Mapping[str, ServiceSpec] = field(default_factory=dict)
    standing: Mapping[str, StandingService] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether all is as it should be."""
        return not self.volumes and not any(plan.operations for plan in self.services)


def plan_project(
    state: ClusterState,
    wanted: ResolvedServices,
    standing: Mapping[str, StandingService],
    strategy: RollingStrategy,
) -> ProjectPlan:
    """Plan the services of a project; ``standing`` may have others of it, beside which they stand together.

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
    schedule = scheduled(state, wanted, standing)
    specs = {name: _fixed(wanted, name) for name in names}
    known = {each.volume_name: each for spec in specs.values() for each in spec.mounted()}
    volumes = [
        CreateVolumeOperation(machine, known[volume.name])
        for machine, made in schedule.create.items()
        for volume in made
    ]
    plans = [
        strategy.plan(state, standing.get(name), specs[name], schedule.machines.get(name)) for name in names
    ]
    gone = [standing[name] for name in sorted(wanted.removed) if name in standing]
    plans += [removal(service) for service in gone]
    there = {name: standing[name] for name in (*names, *wanted.removed) if name in standing}
    return ProjectPlan(tuple(volumes), tuple(plans), specs, there)


def scheduled(
    state: ClusterState, wanted: ResolvedServices, standing: Mapping[str, StandingService]
) -> Schedule:
    """The machines of the services that mount volumes or stay together, and the volumes to make.

    Raises:
        NoMachine, VolumeRefused: a service or a volume that finds no machine.
    """
    names = ordered(wanted.services, wanted.after)
    pinned = [name for name in names if wanted.together or wanted.services[name].mounted()]
    return VolumeScheduler(state, [_user(wanted, name, standing) for name in pinned]).schedule()


def removal(service: StandingService) -> Plan:
    """The plan that takes a service away."""
    places = sorted(pod.place for pod in service.containers)
    operations = tuple(RemoveContainerOperation(service.id, place) for place in places)
    return Plan(operations, service.id, service.name)


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


def _user(wanted: ResolvedServices, name: str, standing: Mapping[str, StandingService]) -> VolumeUser:
    spec, service = wanted.services[name], standing.get(name)
    together = "" if spec.mode == "global" else wanted.together
    near = {name, *(standing.keys() - wanted.services.keys() - {*wanted.removed} if together else ())}
    return VolumeUser(
        service=name,
        request=request_of(spec, service.id if service is not None else "", near=not together),
        volumes=volumes_of(spec, wanted.external),
        everywhere=spec.mode == "global",
        together=together,
        standing=[
            pod.place[0] for each in sorted(near) if each in standing for pod in standing[each].containers
        ],
    )


def _fixed(wanted: ResolvedServices, name: str) -> ServiceSpec:
    """A spec whose pods stay with those of its project, where that stands together.

    A volume binds pods to its machine, and with them the project that stays together: unless its files say
    otherwise, such pods wait for a machine that is lost. All others move, a project as a whole.
    """
    spec = wanted.services[name]
    bound = bool(spec.mounted())
    if wanted.together and spec.mode == "replicated":
        near = PodAffinity(f"{PROJECT_LABEL}={wanted.together}")
        spec = replace(spec, placement=replace(spec.placement, pod_affinity=[near]))
        bound = any(each.mounted() for each in wanted.services.values() if each.mode == "replicated")
    return replace(spec, on_lost=spec.on_lost or ("wait" if bound else "replace"))


# A plan as one short text, by which a farm knows the plan that a person saw: pure.
#
# Volumes, removals and replacements count with their machines, because they cost data or service. Of pods
# that come only the number counts: on a busy fleet the best places change from moment to moment.

Fact = tuple[str | int, ...]


def fingerprint(plan: ProjectPlan) -> str:
    """The fingerprint of a plan; that of an empty one is empty."""
    facts: list[Fact] = [("volume", each.volume.volume_name, each.machine) for each in plan.volumes]
    facts += [fact for service in plan.services for fact in _facts(service)]
    return hashlib.blake2b(codec.encode(sorted(facts)), digest_size=16).hexdigest() if facts else ""


def _facts(plan: Plan) -> list[Fact]:
    name, runs = plan.service_name, Counter[str]()
    found: list[Fact] = []
    for each in plan.operations:
        if isinstance(each, RunContainerOperation):
            runs["run"] += 1
        elif isinstance(each, RemoveContainerOperation | StopContainerOperation):
            verb = "remove" if isinstance(each, RemoveContainerOperation) else "stop"
            found.append((verb, name, *each.place))
        elif isinstance(each, ReplaceContainerOperation):
            found.append((each.order, name, *each.place))
    return [*found, *((verb, name, count) for verb, count in runs.items())]
