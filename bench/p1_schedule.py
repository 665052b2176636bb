"""P1: schedule 5,000 pods of one RC, fenced and audited, by a farm as shipped.

The farm is a process of its own with all kinds of work. 1,000 nodes have agents, which see their intents and
write reality meanwhile. The time begins with the acknowledgement of the changed count. Baseline: a plain
client replays the bodies that the farm sent onto empty keys, with as many requests in flight, under a prefix
with as many agents, which react in the same way. The fence's indexes are those of a lock and a record that
were copied for the replay.

Also compared: one transaction a pod, one after the other. p2's own binary, which writes each pod in a
transaction of its own, took 6.8 s for 5,000 pods on an idle machine of two cores.
"""

from __future__ import annotations

import asyncio
import base64
import time

from bench.farm_process import FarmProcess
from bench.fleet import CHORES, PLAIN, BenchFleet, emptied, fleet, mirrored, settled
from bench.rig import median, note, prepared, replay, report
from farmd.cache.caches import OWN_TREES_PAUSE
from store import codec, operations
from store.consul.client import ConsulClient
from store.keys import Keys
from store.manifests import Manifest
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent
from store.sessions import Session
from store.transaction import IN_FLIGHT
from tests.fleet import CLOCK, KEYS, Cluster, eventually

PODS, NODES = 5000, 1000
PAIRS = 3
SINGLES = 300
CHECK = ("--check", "4", "6")
"""Seconds after which a pod passes its first check, as in P6: after the measure, not in its middle."""
QUIET = OWN_TREES_PAUSE + 2.0
"""Seconds until a farm has read what it wrote last; else that would fall into the next measure."""


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    ours, bare = [], []
    async with fleet(rcs=0, nodes=NODES, agents=CHECK) as setting, mirrored(setting, NODES, CHECK):
        farm = setting.start_farm("placing")
        await setting.claimed([farm], NODES + CHORES)
        for number in range(PAIRS):
            rc = await _controller(setting.client, f"web-{number}")
            ours.append(await _ours(setting, farm, rc))
            bare.append(await _bare(setting, await farm.bodies()))
            note(f"P1 pair {number}: ours {ours[-1]:.3f} s, bare {bare[-1]:.3f} s")
            await _empty(setting, rc)
            await farm.bodies()
        single = await _one_by_one(setting.client) * PODS / SINGLES
    value, baseline = median(ours), median(bare)
    ok = value <= 1.3 * baseline and single >= 10 * value
    return report(
        "P1 schedule 5000 pods", value, baseline, "<= 1.3 x bare, >= 10 x faster than one by one", ok,
        pods_per_second=round(PODS / value), one_by_one=round(single, 2), faster=round(single / value, 1),
    )  # fmt: skip


async def _controller(client: ConsulClient, name: str) -> ReplicationController:
    manifest = Manifest(id=name, command=["web"])
    rc = await Cluster(client).create_rc(name, 0, manifest=manifest, replicas_per_node=PODS // NODES)

    async def owned() -> bool:
        return await client.read(KEYS.status("rcs", rc.id)) is not None

    await eventually(owned, what="the RC is owned")
    return rc


async def _ours(setting: BenchFleet, farm: FarmProcess, rc: ReplicationController) -> float:
    """Seconds from the acknowledged edit to the last acknowledged pod."""
    await asyncio.sleep(QUIET)
    before, cpu = time.monotonic(), farm.cpu_seconds()
    await Cluster(setting.client).change_rc(rc, replicas_desired=PODS)
    edited = time.monotonic()
    took = await farm.all_placed(PODS, before) - edited
    note(f"P1: the farm used {farm.cpu_seconds() - cpu:.2f} s of CPU")
    await settled(setting.client, PODS)
    return took


async def _bare(setting: BenchFleet, bodies: list[bytes]) -> float:
    """Seconds for the same by a plain client."""
    ready = await prepared(setting.client, bodies, PLAIN.prefix)
    await asyncio.sleep(QUIET)
    took = await replay(setting.server.address, ready, IN_FLIGHT)
    await settled(setting.client, PODS, PLAIN)
    return took


async def _empty(setting: BenchFleet, rc: ReplicationController) -> None:
    """Take all pods away again, so that each pair begins with the same fleet."""
    await Cluster(setting.client).change_rc(rc, replicas_desired=0)
    await emptied(setting.client)
    await settled(setting.client, 0)


async def _one_by_one(client: ConsulClient) -> float:
    """Seconds for a few pods, each in a transaction of its own with a fence and an audit record."""
    keys = Keys("single/")
    session = await Session.open(client, CLOCK, name="single", ttl=3600)
    lock = keys.lock("rcs", "0")
    index = (await client.transaction([operations.lock(lock, b"farm/single/0", session.id)]))[0].modify_index
    pod, intent = (
        codec.encode(Pod(manifest="0" * 64)),
        codec.encode(Intent(manifest="0" * 64, owner="0" * 16)),
    )
    started = time.monotonic()
    for number in range(SINGLES):
        await client.transaction(
            [
                operations.check_session(lock, session.id),
                operations.check_index(lock, index),
                operations.create(keys.pod("0", f"node-{number}", "web"), pod),
                operations.create(keys.intent(f"node-{number}", "web"), intent),
                operations.create(keys.audit("0", f"{number}"), base64.b64encode(b"0" * 200)),
            ]
        )
    return time.monotonic() - started
