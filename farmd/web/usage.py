"""What pods use, as their nodes' agents say, while somebody looks at a page that shows it.

A page names the nodes that it shows. Their agents are asked every few seconds, at most ``MOST_NODES`` of
them, until nobody looks any more; then all of it is forgotten. Nothing is stored in Consul but the one-time
keys of these requests.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import aiohttp

from farmd.commands import one_time
from farmd.commands.mutation import Call
from farmd.config.sections import WebSection
from farmd.farm.farm import Farm
from farmd.overview import PodRow
from farmd.runtime.wake import wait
from farmd.tables.usage import OfNode, Place, body, decoded, summed
from farmd.web.lists import Source
from store import access, features, presence
from store.errors import StoreError
from store.http import reason
from store.reality import Usage
from store.words import amount_text, size_text

SECONDS, WANTED_SECONDS = 10.0, 60.0
ANSWER_SECONDS, CONNECT_SECONDS = 5.0, 1.5
MOST_NODES, AT_ONCE = 64, 8
SAMPLES = 60
WIDTH, HEIGHT = 120, 24
PATH = "/v1/usage"


class Shown(NamedTuple):
    """What a page shows of usage: lines with their titles, and drawings."""

    facts: list[tuple[str, str]]
    sparks: list[Spark]


class Spark(NamedTuple):
    """One line of a drawing of ``WIDTH`` by ``HEIGHT``: what it shows, its points, and the present value."""

    name: str
    points: str
    now: str
    told: str


class UsageSource(Source):
    """What the pods of the wanted nodes use, and used in the last minutes."""

    def __init__(self, farm: Farm, section: WebSection) -> None:
        super().__init__(farm)
        self._section = section
        self._wanted: dict[str, float] = {}
        self._soon = asyncio.Event()
        self.found: dict[str, Mapping[str, Usage]] = {}
        self.troubles: dict[str, str] = {}
        self._samples: deque[dict[Place, tuple[float, int]]] = deque(maxlen=SAMPLES)

    def want(self, nodes: Iterable[str]) -> bool:
        """Ask the agents of these nodes for the next minute; False: there are too many."""
        names, now = set(nodes), self.farm.clock.mono()
        if len(names) > MOST_NODES:
            return False
        if names - self._wanted.keys():
            self._soon.set()
        self._wanted |= dict.fromkeys(names, now)
        with self.looking():  # also for a browser that follows nothing
            return True

    def used(self, nodes: Iterable[str]) -> dict[Place, Usage]:
        """What the pods of these nodes use, as far as their agents answered."""
        return {(node, name): each for node in nodes for name, each in self.found.get(node, {}).items()}

    def sparks(self, places: Iterable[Place]) -> list[Spark]:
        """What these pods used together in the last minutes; empty before there are two samples."""
        wanted = set(places)
        sums = [
            [sum(sample[place][at] for place in wanted & sample.keys()) for at in (0, 1)]
            for sample in self._samples
            if not wanted.isdisjoint(sample)
        ]
        if len(sums) < 2:
            return []
        cores, memory = zip(*sums, strict=True)
        return [
            _spark("CPU", cores, lambda value: f"{value:.2f} cores"),
            _spark("Memory", memory, lambda value: size_text(int(value))),
        ]

    async def of_pods(self, call: Call, rows: Sequence[PodRow]) -> Shown:
        """What these pods ask for and use together."""
        running = [row for row in rows if row.pid]
        nodes = sorted({row.node for row in running})
        if not nodes:
            return Shown([], [])
        if not self.want(nodes):
            text = f"not shown: its pods are on {len(nodes)} nodes, more than {MOST_NODES}"
            return Shown([("Use", text)], [])
        found = await summed(call, running, self.used(nodes))
        troubles = [f"{node}: {self.troubles[node]}" for node in nodes if node in self.troubles]
        facts = [("Use", found.text)] if found is not None else []
        facts += [("Use unknown", "; ".join(troubles[:3]))] if troubles else []
        sparks = self.sparks((row.node, row.instance) for row in running)
        return Shown(facts or [("Use", "being read from the agents")], sparks)

    def of_fleet(self) -> Shown:
        """What all pods use, and what is reserved for them, where there are not too many nodes."""
        view = self.farm.fleet.view()
        present = sorted(name for name in view if self.farm.fleet.present(name))
        if not present or not self.want(present):
            return Shown([], [])
        used = self.used(present)
        facts = []
        if used:
            cores, memory = (
                sum(getattr(each, name) for each in used.values()) for name in ("cores", "memory")
            )
            asked = {key: sum(view[each].used.get(key, 0.0) for each in present) for key in ("cpu", "memory")}
            there = {
                key: sum(view[each].capacity.get(key, 0.0) for each in present) for key in ("cpu", "memory")
            }
            cpu = f"{cores:.2f} cores used, {amount_text(asked['cpu'])} asked for"
            cpu += f", of {amount_text(there['cpu'])}"
            sizes = [size_text(int(each)) for each in (memory, asked["memory"], there["memory"])]
            facts = [("CPU", cpu), ("Memory", f"{sizes[0]} used, {sizes[1]} asked for, of {sizes[2]}")]
        return Shown(facts, self.sparks(used))

    def _run(self) -> Iterator[asyncio.Task[None]]:
        yield asyncio.create_task(self._ask_again(), name="web-usage")

    async def _ask_again(self) -> None:
        try:
            while True:
                self._soon.clear()
                try:
                    await self._look()
                except OSError as error:  # of the certificates' files
                    self.troubles = dict.fromkeys(self._wanted, f"web.client_ca, web.tls_cert: {error}")
                await wait(self._soon, self.farm.clock, SECONDS)
        finally:
            self._wanted, self.found, self.troubles = {}, {}, {}
            self._samples.clear()

    async def _look(self) -> None:
        """Ask all agents that a page wanted within the last minute."""
        late = self.farm.clock.mono() - WANTED_SECONDS
        self._wanted = {node: at for node, at in self._wanted.items() if at >= late}
        wanted = sorted(self._wanted, key=lambda node: -self._wanted[node])[:MOST_NODES]
        if not wanted:
            return
        gate = asyncio.Semaphore(AT_ONCE)
        limits = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=_context(self._section), limit=AT_ONCE)
        async with aiohttp.ClientSession(timeout=limits, connector=connector) as http:

            async def one(node: str) -> tuple[str, Mapping[str, Usage] | str]:
                async with gate:
                    return node, await self._asked(http, node)

            answers = await asyncio.gather(*map(one, wanted))
        self.found = {node: each for node, each in answers if not isinstance(each, str)}
        self.troubles = {node: each for node, each in answers if isinstance(each, str)}
        used = self.used(self.found)
        self._samples.append({place: (each.cores, each.memory) for place, each in used.items()})
        self.bell.ring()

    async def _asked(self, http: aiohttp.ClientSession, node: str) -> Mapping[str, Usage] | str:
        """What the pods of a node use; a text says why that is not known."""
        farm = self.farm
        stored = farm.caches.agents.get(farm.keys.agent(node))
        if stored is None or not stored.record.address:
            return "its agent is not connected"
        agent = stored.record
        if features.USAGE not in agent.features:
            return "its agent is an earlier version"
        base = presence.at_host(agent.address, farm.fleet.addresses.host(node))
        try:
            headers = {}
            if features.ACCESS in agent.features:
                call = Call(
                    farm.client, farm.keys, farm.clock, farm.ids, f"farm/{farm.settings.name}", "page"
                )
                headers = await one_time.header(call, node, "", PATH, {}, access.USAGE)
            async with http.get(f"{base}{PATH}", headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return f"its agent answered {response.status}"
                return decoded(OfNode, await body(response)).usage
        except StoreError as error:
            return error.message
        except (aiohttp.ClientError, OSError) as error:
            return f"its agent does not answer: {reason(error)}"


def _context(section: WebSection) -> ssl.SSLContext | bool:
    """What trusts agents: the authorities of the fleet where they are named, else the system's."""
    if not section.client_ca:
        return True
    context = ssl.create_default_context(cafile=section.client_ca)
    if section.tls_cert:
        context.load_cert_chain(section.tls_cert, section.tls_key or None)
    return context


def _spark(name: str, values: Sequence[float], text: Callable[[float], str]) -> Spark:
    most = max(*values, 1e-9)
    step = WIDTH / (SAMPLES - 1)
    first = SAMPLES - len(values)
    points = " ".join(
        f"{(first + at) * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / most:.1f}"
        for at, value in enumerate(values)
        if math.isfinite(value)
    )
    minutes = max(1, round(len(values) * SECONDS / 60))
    told = f"{name} of the last {minutes} min: {text(min(values))} to {text(max(values))}"
    return Spark(name, points, text(values[-1]), told)
