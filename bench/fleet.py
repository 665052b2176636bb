"""The fleet of the rows P2 to P5: 10,000 converged RCs, 50,000 pods, 2,000 nodes with agents.

``python -m bench --controllers N --pods-each N --nodes N`` sets another size, by the variables below.
"""

from __future__ import annotations

import asyncio
import os
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
from store.keys import HEX_DIGITS, Keys, is_sentinel
from store.registration import register_cluster
from tests.fleet import KEYS
from tests.servers import ConsulServer

USUAL_RCS, USUAL_NODES = 10_000, 2_000
SIZE = {
    "controllers": ("FARMD_BENCH_CONTROLLERS", USUAL_RCS),
    "pods-each": ("FARMD_BENCH_PODS_EACH", 5),
    "nodes": ("FARMD_BENCH_NODES", USUAL_NODES),
}
"""The options that set the size: the variable that passes each on, and the default."""
RCS, PODS_EACH, NODES = (int(os.environ.get(name, usual)) for name, usual in SIZE.values())
TIMES = max(1.0, RCS / USUAL_RCS, NODES / USUAL_NODES)
"""How many times as large as usual the fleet is. Set-up and time limits grow with it."""
CHORES = len(housekeeping.CHORES)
PRESENT_SECONDS, REAL_SECONDS, CLAIM_SECONDS = 240 * TIMES, 180 * TIMES, 90 * TIMES
QUIET_SECONDS = 2.0
"""The last wake-ups of farms after the last change of reality are over by then."""
ITEMS = RCS + NODES + CHORES
"""How many items the farms claim: RCs, nodes, and the chores of house-keeping."""
PLAIN = Keys("plain/")
"""The prefix of a bare client's replay, as long as the farm's own."""
LARGE_CONSUL = {"raft_snapshot_threshold": 1_000_000}
"""A snapshot frees the pages that the seeding filled, and Consul 1.8 writes the list of free pages with each
transaction, which then takes 10 ms (docs/scale.md)."""
AGENT_TTL = f"{60 * TIMES:g}"
"""In seconds. It grows with the fleet: renewals of 20,000 agents would outweigh what is measured."""


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

    async def claimed(
        self, farms: list[FarmProcess], items: int = ITEMS, within: float = CLAIM_SECONDS
    ) -> None:
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
    async with rig(LARGE_CONSUL if TIMES > 1 else None) as (server, client):
        await register_nodes(client, nodes)
        await seed_rcs(client, rcs, pods_each=pods_each, nodes=nodes, labelled=labelled)
        note(f"{rcs} RCs and {rcs * pods_each} pods are written after {time.monotonic() - started:.0f} s")
        simulated = Child("bench.agents", [server.address, str(nodes), AGENT_TTL, KEYS.prefix, *agents])
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
    """How many records are below a prefix. A digit at a time, because half a million keys take too long."""
    listed = [(await client.keys(prefix + digit)).items for digit in HEX_DIGITS]
    return sum(not is_sentinel(key) for keys in listed for key in keys)
