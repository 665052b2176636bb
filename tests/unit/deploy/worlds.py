"""Small clusters for tests of plans, written as text, and what a plan makes of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from msgspec.structs import replace as changed

from farmd.deploy import spec as deploy_spec
from farmd.deploy.operations import (
    Plan,
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    ServicePod,
    StandingService,
)
from farmd.deploy.spec import ContainerSpec, Placement, ServiceSpec
from farmd.deploy.strategy import RollingStrategy
from scheduler.cluster import ClusterState
from scheduler.model import PodView
from tests.fleets import fleet, node

ID = "0a1b"


machine = partial(node, features=["runtime.container", "allow./srv"])
"""A machine that runs containers, and lets them have /srv."""


def spec(
    *, ports: str = "", machines: str = "", most: int = 0, image: str = "web:2", **fields: Any
) -> ServiceSpec:
    """The service ``web``; ``container`` fields go to its container."""
    inside = fields.pop("container", {})
    return ServiceSpec(
        name="web",
        container=ContainerSpec(image=image, **inside),
        ports=[deploy_spec.parse(text) for text in ports.split()],
        placement=fields.pop("placement", Placement(machines=machines.split(), max_per_node=most)),
        **fields,
    )


def old(wanted: ServiceSpec) -> ServiceSpec:
    """The same service with the image before."""
    return changed(wanted, container=changed(wanted.container, image="web:1"))


def pods(text: str, wanted: ServiceSpec, before: ServiceSpec | None = None) -> tuple[ServicePod, ...]:
    """Pods such as ``A:u,o B:x``: up to date, outdated, stopped, failing (f) or mine (m)."""
    found = []
    for word in text.split():
        machine, _, kinds = word.partition(":")
        for number, kind in enumerate(kinds.split(",")):
            found.append(
                ServicePod(
                    place=(machine, f"web~{number}"),
                    spec=(before or old(wanted)) if kind == "o" else wanted,
                    running=kind != "x",
                    failing=kind == "f",
                    mine=kind == "m",
                )
            )
    return tuple(found)


def cluster(machines: str, standing: tuple[ServicePod, ...] = (), **facts: Any) -> ClusterState:
    """Machines such as ``A B! C-``: the one with ``!`` is lost, that with ``-`` cordoned, ``?`` unknown."""
    views = []
    for word in machines.split():
        name = word.rstrip("!-?")
        there = {pod.place[1]: PodView(ID) for pod in standing if pod.place[0] == name}
        views.append(
            machine(name, lost="!" in word, absent="?" in word, cordoned="-" in word, pods=there, **facts)
        )
    return ClusterState(fleet(*views))


def plan(machines: str, live: str, wanted: ServiceSpec, *, force: bool = False, **fields: Any) -> Plan:
    """What is planned for a service whose pods are ``live``."""
    standing = pods(live, wanted, fields.pop("before", None))
    service = StandingService(id=ID, name="web", mode=wanted.mode, containers=standing) if live else None
    strategy = RollingStrategy(force_recreate=force, new_id=ID)
    return strategy.plan(cluster(machines, standing, **fields), service, wanted)


def applied(planned: Plan, service: StandingService, wanted: ServiceSpec) -> StandingService:
    """The service after the whole plan."""
    standing = {pod.place: pod for pod in service.containers}

    def add(machine: str) -> None:
        number = next(n for n in range(10_000) if (machine, f"web~{n}") not in standing)
        place = (machine, f"web~{number}")
        standing[place] = ServicePod(place=place, spec=wanted)

    for each in planned:
        if isinstance(each, RunContainerOperation):
            add(each.machine)
        elif isinstance(each, RemoveContainerOperation):
            del standing[each.place]
        elif isinstance(each, ReplaceContainerOperation):
            standing[each.place] = ServicePod(place=each.place, spec=wanted)
    return replace(service, containers=tuple(standing.values()))
