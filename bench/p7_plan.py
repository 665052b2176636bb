"""P7: a plan for 1,000 services with 3 pods each on 1,000 machines, with 40 rules and 200 volumes.

The bare minimum for the same answer: the manifest of each service's pods, each rule judged once on each
machine by one look at a label, and the three emptiest machines that it leaves, from sets kept by load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.rig import median, report
from farmd.deploy.manifest import manifest_of
from farmd.deploy.project import ResolvedServices, plan_project
from farmd.deploy.spec import ContainerSpec, Placement, ServiceSpec, VolumeMount, VolumeSpec
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from scheduler.fleet import node_view
from scheduler.model import FleetView
from store.manifests import Constraint
from store.nodes import Agent, Node

SERVICES, REPLICAS, MACHINES, RULES, VOLUMES = 1000, 3, 1000, 40, 200
ROUNDS = 5
SECONDS, RATIO = 1.0, 5.0


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    view, wanted = machines(), services()
    pairs = [(_took(lambda: bare(view, wanted)), _took(lambda: planned(view, wanted))) for _ in range(ROUNDS)]
    least, ours = (median(column) for column in zip(*pairs, strict=True))
    ok: bool = ours <= SECONDS and ours <= RATIO * least
    target = f"<= {SECONDS:g} s and <= {RATIO:g} x bare"
    report("P7 plan 1,000 services on 1,000 machines, seconds", ours, least, target, ok)
    return ok


def machines() -> FleetView:
    """The machines, each with one of 40 zones."""
    names = [f"m{number:04}" for number in range(MACHINES)]
    return {
        name: node_view(
            name,
            node=Node(labels={"zone": _zone(number)}),
            agent=Agent(node=name, version="1", features=["runtime.container"]),
        )
        for number, name in enumerate(names)
    }


def services() -> ResolvedServices:
    """The services: each in one zone, every fifth with a volume."""
    return ResolvedServices(services={spec.name: spec for spec in map(_service, range(SERVICES))})


def _service(number: int) -> ServiceSpec:
    has_volume = number < VOLUMES
    return ServiceSpec(
        name=f"s{number:04}",
        replicas=REPLICAS,
        container=ContainerSpec(
            image="web:1", mounts=[VolumeMount(volume=f"v{number}", path="/data")] if has_volume else []
        ),
        volumes=[VolumeSpec(name=f"v{number}")] if has_volume else [],
        placement=Placement(constraints=[Constraint("zone", "=", [_zone(number)])]),
    )


def _zone(number: int) -> str:
    return f"z{number % RULES}"


def planned(view: FleetView, wanted: ResolvedServices) -> None:
    """The plan as farms and previews make it."""
    plan = plan_project(ClusterState(view, seed="bench"), wanted, {}, RollingStrategy())
    assert sum(len(each) for each in plan.services) == SERVICES * REPLICAS
    assert len(plan.volumes) == VOLUMES


def bare(view: FleetView, wanted: ResolvedServices) -> None:
    """The same manifests and places with nothing around them."""
    for spec in wanted.services.values():
        manifest_of(spec)
    rules = {
        zone: sum(1 << at for at, node in enumerate(view.values()) if node.labels["zone"] == zone)
        for zone in map(_zone, range(RULES))
    }
    levels = {0: (1 << len(view)) - 1}
    for number in range(SERVICES):
        free, taken = rules[_zone(number)], 0
        for load in sorted(levels):
            while (left := levels[load] & free) and taken < REPLICAS:
                bit = left & -left
                free ^= bit
                levels[load] ^= bit
                levels[load + 1] = levels.get(load + 1, 0) | bit
                taken += 1


def _took(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
