"""An idle item costs little memory: a farm keeps ten thousand controllers and all of their pods (P3)."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc

from prometheus_client import CollectorRegistry

from farmd.farm.model import FarmSettings
from farmd.observe.metrics import Metrics
from farmd.observe.progress import Progress
from farmd.process.wiring import build_farm
from store import codec, operations
from store.consul.client import ConsulClient
from store.embedded.inprocess import InProcessTransport
from store.rcs import ReplicationController
from store.registration import register_cluster
from tests.fleet import KEYS, Inbox
from tests.virtual import SeededIds, VirtualClock, embedded_server

FIRST, MORE = 100, 300
BYTES = 3_800
"""For one RC without pods: its record, item, lock, status, worker and task. 3,260 with Python 3.11."""
NOT_THE_FARMS = ("*/store/embedded/*", "*/tests/*", "*/tracemalloc.py")


def used() -> int:
    gc.collect()
    filters = [tracemalloc.Filter(False, pattern) for pattern in NOT_THE_FARMS]
    traces = tracemalloc.take_snapshot().filter_traces(filters).traces
    return sum(trace.size for trace in traces)


async def test_p3_an_idle_rc_costs_little_memory() -> None:
    clock, ids = VirtualClock(), SeededIds(7)
    server = embedded_server(clock)
    client = ConsulClient(InProcessTransport(server), clock=clock)
    await register_cluster(client, KEYS, ids)
    metrics = Metrics(CollectorRegistry())
    farm = await build_farm(
        settings=FarmSettings(name="a"),
        client=client,
        keys=KEYS,
        clock=clock,
        rng=random.Random(1),
        ids=ids,
        recorder=metrics,
        progress=Progress(clock, metrics),
        alerter=Inbox(),
        kinds=("rcs",),
    )
    stop = asyncio.Event()

    async def idle(count: int) -> int:
        """Bytes in use once that many more RCs have been owned and idle for a while."""
        for _ in range(count):
            item = ids.new()
            rc = ReplicationController(id=item, name=f"n{item}", manifest="m", replicas_desired=0)
            await client.transaction([operations.put(KEYS.record("rcs", item), codec.encode(rc))])
        await clock.advance(120.0)
        return used()

    tracemalloc.start()
    running = asyncio.create_task(farm.run(stop))
    try:
        before = await idle(FIRST)
        after = await idle(MORE)
        assert sum(len(loop.supervisor) for loop in farm.loops) == FIRST + MORE
    finally:
        tracemalloc.stop()
        stop.set()
        await clock.advance(1.0)
        await running
    assert (after - before) / MORE < BYTES
