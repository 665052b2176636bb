"""An idle item costs little memory: a farm keeps ten thousand controllers and all of their pods (P3)."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from store.rcs import ReplicationController
from tests.node_farms import KEYS, Fleet

FIRST, MORE = 100, 300
BYTES = 2_600
"""For one RC without pods: its record, item, lock, status and worker. 2,160 with Python 3.11."""
NOT_THE_FARMS = ("*/store/embedded/*", "*/tests/*", "*/tracemalloc.py")


def used() -> int:
    gc.collect()
    filters = [tracemalloc.Filter(False, pattern) for pattern in NOT_THE_FARMS]
    traces = tracemalloc.take_snapshot().filter_traces(filters).traces
    return sum(trace.size for trace in traces)


@pytest.mark.whole
async def test_p3_an_idle_rc_costs_little_memory() -> None:
    fleet = Fleet()

    async def idle(count: int) -> int:
        """Bytes in use once that many more RCs have been owned and idle for a while."""
        for _ in range(count):
            item = fleet.ids.new()
            rc = ReplicationController(id=item, name=f"n{item}", manifest="m", replicas_desired=0)
            await fleet.put(KEYS.record("rcs", item), rc)
        await fleet.clock.advance(120.0)
        fleet.farms["a"].faults.sent.clear()
        return used()

    tracemalloc.start()
    try:
        farm = await fleet.start("a", kinds=("rcs",))
        before = await idle(FIRST)
        after = await idle(MORE)
        assert len(farm.owned) == FIRST + MORE
    finally:
        tracemalloc.stop()
    await fleet.end("a")
    assert (after - before) / MORE < BYTES
