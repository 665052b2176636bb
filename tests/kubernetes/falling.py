"""Farms behind proxies, one of which falls away at exactly the k-th packet of some work in Kubernetes.

The packet goes to the API server or to Consul. The farm is killed, stopped until another one has come to the
end, or cut off while it lives on; what it sent arrives never, at once without an answer, or after the end.

Many such cases share one loop, whose requests have limits of time. What waits outside of the loop waits in a
thread: else the cases that became ready meanwhile wait for one another, and the limits of all are over.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from tests.fault import falling
from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.rig import came
from tests.fleet import Cluster, cluster_on, eventually, in_time
from tests.kubeconfigs import kubeconfig
from tests.kubernetes_server import Api
from tests.mortal import bury
from tests.proxy import Hold, Proxy, Seen, transactions
from tests.proxy_holds import Match

Fate = falling.Fate | Literal["cut, sent late"]
Point = Literal["writes", "reads", "consul"]

SESSION_SECONDS = 10.0


def writes(seen: Seen) -> bool:
    """A request that changes something in Kubernetes; events, which are no part of any work, are none."""
    return seen.method in ("POST", "PATCH", "DELETE") and not seen.path.endswith("/events")


def reads(seen: Seen) -> bool:
    """A request that changes nothing: lists, watches, single objects, and whose cluster it is."""
    return seen.method == "GET"


MATCHES: Mapping[Point, Match] = {"writes": writes, "reads": reads, "consul": transactions}


@dataclass
class Front(ABC):
    """Some work in a namespace and a cluster of its own; ``consul`` and ``api`` are the farms' ways there."""

    namespace: str
    folder: Path
    nursery: Nursery
    cluster: Cluster
    consul: Proxy
    api: Proxy

    kinds: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    async def begin(self) -> None:
        """Let people begin the work."""

    @abstractmethod
    async def ended(self) -> None:
        """Return when the work is done."""

    @abstractmethod
    def judge(self, hold: Hold, fate: Fate) -> None:
        """What must be so in the end, whoever fell where."""

    async def farm(self, name: str) -> FarmProcess:
        """One more farm, as a process."""
        path = self.folder / f"{self.namespace}.json"
        path.write_text(kubeconfig({"server": f"http://{self.api.address}"}))
        section = {"kubeconfig": str(path), "name": self.namespace, "namespaces": [self.namespace]}
        keys = self.cluster.keys
        start = partial(self.nursery.farm, kinds=self.kinds, kubernetes=section)
        return await asyncio.to_thread(start, self.consul.address, name, keys)

    async def present(self, name: str, farm: FarmProcess) -> None:
        """Return when a farm is a member, and no session of a former one of its name is left."""

        async def so() -> bool:
            return await self.cluster.client.read(self.cluster.keys.farm(name)) is not None

        try:
            await eventually(so, what=f"farm {name}")
        except AssertionError as error:
            error.add_note(farm.tail())
            raise

    def passed(self) -> dict[Point, int]:
        """How many packets of each sort the farms have sent."""
        return {point: sum(map(match, self.way(point).requests)) for point, match in MATCHES.items()}

    def way(self, point: Point) -> Proxy:
        """Which way packets of that sort go."""
        return self.consul if point == "consul" else self.api


def sampled(counts: Mapping[Point, int], seed: int) -> Iterator[tuple[Point, int]]:
    """Of the packets of each sort the first, the last and a tenth by chance."""
    rng = random.Random(seed)
    for point, count in counts.items():
        some = rng.sample(range(1, count + 1), -(-count // 10))
        yield from ((point, k) for k in sorted({1, *some, count}))


@asynccontextmanager
async def proxies(api: Api, consul: str) -> AsyncIterator[tuple[Cluster, Proxy, Proxy]]:
    """A cluster of its own, and a way to Consul and to the API server."""
    upstream = api.url.removeprefix("https://")
    async with (
        cluster_on(consul) as cluster,
        Proxy(consul) as first,
        Proxy(upstream, tls=api.login()) as second,
    ):
        yield cluster, first, second


@dataclass(frozen=True)
class Fall:
    """What happens at the k-th packet of a sort, or of those of it that ``match``."""

    point: Point
    k: int
    fate: Fate
    match: Match | None = None

    def hold(self, front: Front) -> Hold:
        """Hold that packet, or its answer."""
        answer = self.fate.endswith(("answered", "answered late"))
        return front.way(self.point).hold(self.match or MATCHES[self.point], self.k, answer=answer)


async def tried(front: Front, fall: Fall) -> dict[Point, int]:
    """One farm falls in the midst of the work; how many packets of each sort there were.

    Reads count from the farm's start on, writes and transactions from the beginning of the work.
    """
    early = fall.hold(front) if fall.point == "reads" else None
    victim = await front.farm("mortal")
    await front.present("mortal", victim)
    before = front.passed() | {"reads": 0}
    hold = early or fall.hold(front)
    await front.begin()
    try:
        if await came(hold, front.ended()):
            await _fallen(front, fall, hold, victim)
        front.judge(hold, fall.fate)
    except BaseException as error:
        error.add_note(f"{fall}, {hold.seen}")
        raise
    finally:
        await victim.end()
    return {point: count - before[point] for point, count in front.passed().items()}


async def _fallen(front: Front, fall: Fall, hold: Hold, victim: FarmProcess) -> None:
    """The farm meets its fate at what is held, and another comes to the end, or itself if it lives on."""
    over = asyncio.get_running_loop().time() + SESSION_SECONDS
    if fall.fate.startswith("cut"):
        hold.cut()
        await front.ended()
        hold.release()
        await in_time(hold.finished.wait())
        await front.ended()
        return
    if fall.fate.startswith("stopped"):
        victim.pause()
    else:
        await victim.end()
        hold.drop()
    heir = await front.farm("heir")
    await bury(front.cluster)
    await front.ended()
    if fall.fate.startswith("stopped"):
        # Consul ends no session before its time is over by the farm's own clock; ``bury`` does.
        await asyncio.sleep(over - asyncio.get_running_loop().time())
        victim.resume()
        hold.release()
        await in_time(hold.finished.wait())
        await front.present("mortal", victim)
        await front.ended()
    await heir.end()
