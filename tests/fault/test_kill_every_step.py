"""A farm killed at exactly its k-th transaction while it schedules 200 pods, for every k.

The farm talks through the tests' proxy, which holds that transaction (or its answer) while the farm is
killed. What becomes of the transaction then differs from case to case. The survivor runs already, with
caches that were read in the middle. So as not to wait for Consul's twice-the-TTL at each k, the cases end
the dead farm's session themselves, as Consul would; one of ``test_real_expiry.py`` waits for the real thing.
``tests/stateful/test_changes_every_step.py`` tries each fate at each transaction of shorter plans.
"""

from __future__ import annotations

import asyncio
from typing import Literal, get_args

from tests.fault.farm_process import Nursery
from tests.fault.rig import ASKING, Rig, came, every_k, id_preferring, rig_on
from tests.fleet import in_time
from tests.proxy import Proxy

PODS = 200
# The presence, the claim, and at least as many as hold the pods.
LEAST = 2 + PODS // 30
AT_ONCE = 2

Fate = Literal["arrives before the take-over", "arrives after it", "never arrives", "is never answered"]
FATES: tuple[Fate, ...] = get_args(Fate)


async def scheduled(rig: Rig, rc_id: str) -> None:
    """Wait until the farm says that all is placed."""
    while (status := await rig.status(rc_id)) is None or status.placed < PODS:
        await asyncio.sleep(0.02)


async def kill_at(k: int, fate: Fate, consul: str, nursery: Nursery) -> int:
    """One case; how many transactions came."""
    context = f"k={k}, the transaction {fate}"
    async with rig_on(consul, nursery, nodes=PODS + 32) as rig, Proxy(consul) as proxy:
        hold = proxy.hold_transaction(k, answer=fate == "is never answered")
        rc = await rig.rc(PODS, manifest=ASKING, id=id_preferring("victim", "survivor"))
        victim = rig.process("victim", proxy.address)
        if not await came(hold, scheduled(rig, rc.id)):
            await rig.settled(context)
            return hold.count
        await rig.farm("survivor")
        await victim.end()
        if fate == "arrives after it":
            await rig.shun(hold)
        if fate in ("never arrives", "is never answered"):
            hold.drop()
        elif fate == "arrives before the take-over":
            hold.release()
            await in_time(hold.finished.wait())  # it may announce the farm whose session ends next
        await rig.expire("victim", hold)
        await rig.owned_by("survivor", rc.id)
        if fate == "arrives after it":
            await rig.settled(context)
            hold.release()
            await in_time(hold.finished.wait())
        dump = await rig.settled(context)
        assert len(dump.pods) == len(dump.intents) == PODS, context
        assert await rig.owner(rc.id) == "survivor", context
    return k


async def test_no_pod_twice_and_none_lost_at_any_step(consul_dev: str, nursery: Nursery) -> None:
    """Each transaction; the fates take turns."""
    steps = await every_k(lambda k: kill_at(k, FATES[k % len(FATES)], consul_dev, nursery), AT_ONCE)
    assert steps >= LEAST
