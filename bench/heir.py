"""One farm's items after its ``kill -9``, by another farm that is alive."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.farm_process import FarmProcess
from bench.processes import wait_for
from bench.rig import held, note
from store.consul.client import ConsulClient
from tests.fleet import KEYS


def owned(farm: FarmProcess, kind: str, since: float = 0.0) -> int:
    """How many items of a kind got workers in a farm after a moment."""
    return sum(count for _, count in farm.taken(kind, since))


async def inherited(store: ConsulClient, farms: Sequence[FarmProcess], kind: str) -> tuple[int, float]:
    """Kill the first of two farms: how many items the other one took, and the seconds from when Consul freed
    them until all had workers.
    """
    dying, heir = farms
    taken, presence = await held(store, dying, kind), KEYS.farm(dying.name)
    index, _ = await store.get(presence)
    died = time.monotonic()
    await dying.end(kill=True)
    note("waiting for Consul to free the locks")
    entry: object = "present"
    while entry is not None:
        index, entry = await store.get(presence, index=index, wait=30)
    freed = time.monotonic()
    # A busy machine may show the freed locks to this process later than to the farm.
    await wait_for(lambda: owned(heir, kind, died) >= taken, 60, f"{taken} items have workers")
    return taken, max(at for at, _ in heir.taken(kind, died)) - freed
