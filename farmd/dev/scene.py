"""The state of the fleet at one moment, as the demo shows it.

All figures are measured: controllers, pods and owners are read from the store, answers from the workloads
over HTTP. No figure is taken from the demo's own commands.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import aiohttp

from farmd import overview
from farmd.overview import PodRow
from store.consul.client import ConsulClient
from store.keys import Keys
from store.ports import Clock
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


# Clients of a controller, as the demo counts their answers.
#
# They ask as behind a load balancer: only pods that are healthy, and the next pod if one does not answer. A
# visit fails if no pod answers it.

BETWEEN_SECONDS = 0.02
FRESH_VISITS = 10


class Visits:
    """One visit after the other, each at another pod; ``answers`` counts them by their greeting."""

    def __init__(
        self, client: ConsulClient, keys: Keys, http: aiohttp.ClientSession, clock: Clock, instance: str
    ) -> None:
        self._client, self._keys, self._http, self._clock = client, keys, http, clock
        self._instance = instance
        self.answers: Counter[str] = Counter()
        self.failed = 0

    async def run(self) -> None:
        """Visit until cancelled."""
        while True:
            found = await overview.pods(self._client, self._keys)
            pods = [pod for pod in found.placed if pod.instance == self._instance and pod.healthy]
            for number in range(FRESH_VISITS):
                first = number % max(1, len(pods))
                for pod in chain(pods[first:], pods[:first]):
                    if text := await answer(self._http, pod):
                        self.answers[text.partition(" from ")[0]] += 1
                        break
                else:
                    self.failed += 1
                await self._clock.sleep(BETWEEN_SECONDS)

    def told(self) -> str:
        """How many visits were answered, by which version, and how many were not."""
        told = ", ".join(f"{count} with {greeting!r}" for greeting, count in sorted(self.answers.items()))
        return f"visits answered: {self.answers.total()} ({told}); failed: {self.failed}"
