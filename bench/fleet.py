"""The fleet of the rows P2 to P5: 10,000 converged RCs, 50,000 pods, 2,000 nodes with agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.farm_process import FarmProcess
from bench.processes import Child
from bench.rig import note, rig, write_all
from bench.seeding import register_nodes, seed_rcs
from farmd.housekeeping import kind as housekeeping
from farmd.runtime.clock import SystemIds
from store import operations
from store.consul.client import ConsulClient
from store.keys import Keys, is_sentinel
from store.registration import register_cluster
from tests.fleet import KEYS
from tests.servers import ConsulServer

RCS, PODS_EACH, NODES = 10_000, 5, 2_000
CHORES = len(housekeeping.CHORES)
PRESENT_SECONDS, REAL_SECONDS = 240, 180
QUIET_SECONDS = 2.0
"""The last wake-ups of farms after the last change of reality are over by then."""
ITEMS = RCS + NODES + CHORES
"""How many items the farms claim: RCs, nodes, and the chores of house-keeping."""
PLAIN = Keys("plain/")
"""The prefix of a bare client's replay, as long as the farm's own."""
AGENT_TTL = "60"


@dataclass
class BenchFleet:
    """A server with the fleet's records, its agents and its farms."""

    server: ConsulServer
    client: ConsulClient
    agents: Child
    farms: list[FarmProcess]
    keys: Keys = KEYS

    def start_farm(self, name: str, selector: str = "") -> FarmProcess:
        """Start one more farm; the end of the fleet stops it at the latest."""
        farm = FarmProcess(self.server.address, name, selector)
        self.farms.append(farm)
        return farm

    async def stop_farms(self) -> None:
        """Stop all farms cleanly."""
        farms, self.farms = self.farms, []
        await asyncio.gather(*(farm.end() for farm in farms))

    async def claimed(self, farms: list[FarmProcess], items: int = ITEMS, within: float = 90.0) -> None:
        """Return when these farms have taken ``items`` locks in all."""
        for farm in farms:
            await farm.heard("farm.ready", within)
        await farms[0].until(
            lambda: sum(farm.claimed() for farm in farms) >= items, within, f"{items} items are claimed"
        )


@asynccontextmanager
async def fleet(
    *,
    rcs: int = RCS,
    pods_each: int = PODS_EACH,
    nodes: int = NODES,
    labelled: int = 0,
    agents: Sequence[str] = (),
) -> AsyncIterator[BenchFleet]:
    """A converged fleet without farms: the records are written, the agents are present and wrote reality.

    ``agents`` are more arguments of the process that simulates them.
    """
    started = time.monotonic()
    async with rig() as (server, client):
        await register_nodes(client, nodes)
        await seed_rcs(client, rcs, pods_each=pods_each, nodes=nodes, labelled=labelled)
        note(f"{rcs} RCs and {rcs * pods_each} pods are written after {time.monotonic() - started:.0f} s")
        simulated = Child("bench.agents", [server.address, str(nodes), *agents])
        built = BenchFleet(server, client, simulated, [])
        try:
            await simulated.heard("bench.present", PRESENT_SECONDS)
            await real(client, rcs * pods_each)
            note(f"{nodes} agents are present after {time.monotonic() - started:.0f} s")
            yield built
        finally:
            await built.stop_farms()
            await simulated.end()


@asynccontextmanager
async def mirrored(setting: BenchFleet, nodes: int, agents: Sequence[str] = ()) -> AsyncIterator[None]:
    """As many agents under another prefix, for a bare client's replay there; ``agents`` as for ``fleet``."""
    await register_cluster(setting.client, PLAIN, SystemIds())
    await register_nodes(setting.client, nodes, PLAIN)
    told = [setting.server.address, str(nodes), AGENT_TTL, PLAIN.prefix, *agents]
    simulated = Child("bench.agents", told)
    try:
        await simulated.heard("bench.present", PRESENT_SECONDS)
        yield
    finally:
        await simulated.end()


async def emptied(client: ConsulClient) -> None:
    """Take away what a replay placed; return when nobody reacts to that any more."""
    for name in ("pods", "intent"):
        listed = (await client.keys(PLAIN.tree(name))).items
        await write_all(client, [operations.delete(key) for key in listed if not is_sentinel(key)])
    await settled(client, 0, PLAIN)


async def real(client: ConsulClient, pods: int) -> None:
    """Return when the reality of every pod is written."""
    deadline = time.monotonic() + REAL_SECONDS
    while (found := await _count(client, KEYS.tree("reality"))) < pods:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the agents wrote {found} of {pods} records of reality within {REAL_SECONDS} s"
            )
        await asyncio.sleep(0.5)


async def settled(client: ConsulClient, pods: int, keys: Keys = KEYS) -> None:
    """Return when there is reality of just so many pods, all pass their check, and nobody reacts any more."""
    deadline = time.monotonic() + REAL_SECONDS
    while (found := await _passing(client, keys.tree("reality"))) != (pods, pods):
        if time.monotonic() > deadline:
            raise RuntimeError(f"(pods, healthy) are {found} after {REAL_SECONDS} s, expected {(pods, pods)}")
        await asyncio.sleep(0.5)
    await asyncio.sleep(QUIET_SECONDS)


async def _passing(client: ConsulClient, prefix: str) -> tuple[int, int]:
    values = [raw.decoded() for raw in (await client.list(prefix)).items if not is_sentinel(raw.key)]
    return len(values), sum(b"passing" in value for value in values)


async def _count(client: ConsulClient, prefix: str) -> int:
    page = await client.keys(prefix)
    return sum(not is_sentinel(key) for key in page.items)
