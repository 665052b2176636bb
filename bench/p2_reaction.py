"""P2: the time from an edit of a desired count until the intent is committed, with 10,000 RCs present.

Another client makes the edit; there are 2,000 nodes with agents, and 50,000 pods. Baseline: a watch on one
single key, and the same transaction, in the same process.
"""

from __future__ import annotations

import asyncio
import time

from bench.fleet import RCS, fleet
from bench.rig import Recording, median, note, report
from bench.seeding import rc_id
from farmd.cache.caches import OWN_TREES_PAUSE
from farmd.kinds import KINDS
from store import codec, operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import AiohttpTransport
from store.operations import Operation
from store.rcs import ReplicationController
from tests.fleet import CLOCK, KEYS, Cluster, farm_on

ROUNDS = 40
SETTLE_SECONDS = 5


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    async with fleet() as setting:
        client = setting.client
        recording = Recording(AiohttpTransport(Address.from_environment({}, setting.server.address)))
        farm_client = ConsulClient(recording, clock=CLOCK)
        async with farm_on(farm_client, "bench", kinds=KINDS, own_trees_pause=OWN_TREES_PAUSE) as farm:
            while len(farm.owned) < RCS:
                await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_SECONDS)
            ours, bare = [], []
            for number in range(ROUNDS):
                ours.append(await _ours(Cluster(client), recording, number))
                bare.append(await _bare(client, number))
        await farm_client.close()
    value, baseline = median(ours), median(bare)
    note(f"P2 ours p90 {sorted(ours)[int(ROUNDS * 0.9)] * 1000:.1f} ms")
    return report(
        "P2 reaction among 10000 RCs on 2000 nodes",
        value,
        baseline,
        "p50 <= 3 x bare wake-up and transaction",
        value <= 3 * baseline,
    )


async def _ours(cluster: Cluster, recording: Recording, number: int) -> float:
    """Seconds from the edit's acknowledgement to the acknowledged intent."""
    stored = await cluster.client.read(KEYS.record("rcs", rc_id(number)))
    assert stored is not None
    rc = codec.decode(ReplicationController, stored.value, stored.key)
    recording.bodies.clear()
    recording.answered.clear()
    started = time.monotonic()
    await cluster.change_rc(rc, replicas_desired=rc.replicas_desired + 1)
    for _ in range(2000):
        done = [
            at
            for body, at in zip(recording.bodies, recording.answered, strict=False)
            if b"farmd/intent/" in body
        ]
        if done:
            return done[0] - started
        await asyncio.sleep(0.002)
    raise RuntimeError("the change was not carried out within 4 s")


async def _bare(client: ConsulClient, number: int) -> float:
    """Seconds for the same by hand: the watch of one key, and one transaction of as many operations."""
    key = f"bare/{number}"
    await client.put(key, b"0")
    index, _ = await client.get(key)
    waking = asyncio.create_task(client.get(key, index=index, wait=30))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await client.transaction([operations.put(key, b"1")])
    await waking
    await client.transaction(_operations(number))
    return time.monotonic() - started


def _operations(number: int) -> list[Operation]:
    keys = [f"bare/{number}/{part}" for part in ("pod", "intent", "audit")]
    return [operations.create(key, b"x" * 200) for key in keys]
