"""The state of the fleet at one moment, as the demo shows it.

All figures are measured: controllers, pods and owners are read from the store, answers from the workloads
over HTTP. No figure is taken from the demo's own commands.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from farmd import overview
from farmd.overview import PodRow
from store.consul.client import ConsulClient
from store.keys import Keys
from store.words import count_of

ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SeenController:
    """One controller: its owner, its desired count, its pods, and each pod's answer."""

    name: str
    owner: str
    desired: int
    pods: tuple[PodRow, ...]
    answers: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def healthy(self) -> int:
        """Pods that pass their health check."""
        return sum(pod.healthy for pod in self.pods)

    @property
    def answering(self) -> int:
        """Pods whose process answers with this pod's own node and instance."""
        return sum(self.answers.get(place(pod), "").endswith("/".join(place(pod))) for pod in self.pods)

    @property
    def converged(self) -> bool:
        """Whether the desired number of pods exist, pass their checks and answer."""
        return len(self.pods) == self.healthy == self.answering == self.desired

    def line(self) -> str:
        """One line for people."""
        nodes = ",".join(sorted(pod.node.removeprefix("node-") for pod in self.pods)) or "-"
        return (
            f"{self.name}: owner {self.owner or 'nobody'}, {self.desired} wanted, {len(self.pods)} placed"
            f" (nodes {nodes}), {self.healthy} healthy, {self.answering} answer"
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """The fleet at one moment."""

    controllers: dict[str, SeenController]
    farms: tuple[str, ...]
    nodes: int

    def lines(self) -> list[str]:
        """One line for the fleet, and one for each controller."""
        pods = Counter(pod.node for seen in self.controllers.values() for pod in seen.pods)
        counts = f"{count_of(self.nodes, 'node')}; {count_of(pods.total(), 'pod')}"
        first = f"farms {', '.join(self.farms) or 'none'}; {counts}"
        return [first, *(seen.line() for seen in self.controllers.values())]


def place(pod: PodRow) -> tuple[str, str]:
    """(node, instance)."""
    return pod.node, pod.instance


async def look(client: ConsulClient, keys: Keys, http: aiohttp.ClientSession) -> Scene:
    """Read the store, then send a request to every workload in it."""
    owners = (await overview.owners(client, keys)).values()
    pods = (await overview.pods(client, keys)).placed
    nodes = await overview.nodes(client, keys)
    told = await asyncio.gather(*(answer(http, pod) for pod in pods))
    answers = dict(zip(map(place, pods), told, strict=True))
    seen = {
        row.record.name: SeenController(
            name=row.record.name,
            owner=row.owner,
            desired=row.desired,
            pods=(mine := tuple(pod for pod in pods if pod.owner == row.record.id)),
            answers={place(pod): answers[place(pod)] for pod in mine},
        )
        for row in sorted((row for found in owners for row in found.rows), key=lambda row: row.record.name)
    }
    farms = tuple(member.id for member in await overview.farms(client, keys))
    return Scene(seen, farms, sum(row.agent is not None for row in nodes.rows))


async def answer(http: aiohttp.ClientSession, pod: PodRow) -> str:
    """A workload's answer; empty without one."""
    if "http" not in pod.ports:
        return ""
    try:
        async with http.get(f"http://127.0.0.1:{pod.ports['http']}/") as response:
            return (await response.text()).strip() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""


def greets(scene: Scene, name: str) -> bool:
    """Whether every pod of a controller is of the second version."""
    seen = scene.controllers[name]
    return seen.converged and all(text.startswith("hello again") for text in seen.answers.values())


def runs(scene: Scene, name: str) -> bool:
    """Whether a farm has a controller, which is converged."""
    return scene.controllers[name].owner != "" and scene.controllers[name].converged


def has(scene: Scene, name: str, replicas: int) -> bool:
    """Whether a controller is converged at so many replicas."""
    seen = scene.controllers[name]
    return seen.desired == replicas and seen.converged
