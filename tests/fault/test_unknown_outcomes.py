"""Answers that never come, and writes that arrive too late, at every transaction of a living farm (R12).

For each k the k-th transaction after a change of the count is lost, or its answer is, or its connection is
cut and it arrives once the farm has long planned anew. Whatever happened, the farm converges on exactly the
right pods, each change is in the audit once, and nothing is done twice.
"""

from __future__ import annotations

from typing import Literal

import pytest

from tests.effort import first
from tests.fault.rig import ASKING, Rig, came, every_k, rig_on
from tests.fleet import RunningFarm, eventually, in_time
from tests.proxy import Hold, Proxy

PODS = 60
AT_ONCE = 3

FATES = ("never arrives", "is never answered", "arrives too late", "arrives just before the next")
Fate = Literal["never arrives", "is never answered", "arrives too late", "arrives just before the next"]


async def told(rig: Rig, rc_id: str, placed: int) -> None:
    """Wait until the farm says that so many pods are placed: nothing is left for it to write."""

    async def so() -> bool:
        status = await rig.status(rc_id)
        return status is not None and (status.placed, status.desired) == (placed, placed)

    await eventually(so, what=f"a status of {placed} pods")


async def meet(hold: Hold, fate: Fate, rig: Rig, proxy: Proxy, context: str) -> None:
    """Let a held transaction meet its fate."""
    if fate in ("never arrives", "is never answered"):
        hold.drop()
        return
    following = proxy.hold_transaction()
    hold.cut()
    if fate == "arrives just before the next":
        # The farm has read again and planned: exactly now that reading becomes wrong.
        await in_time(following.reached.wait())
    else:
        following.release()
        await rig.settled(context)
    hold.release()
    await in_time(hold.finished.wait())
    following.release()


async def lose(k: int, fate: Fate, consul: str, before: int, after: int) -> int:
    """One case; how many transactions came."""
    context = f"k={k} of {before} -> {after}, the transaction {fate}"
    async with rig_on(consul, nodes=PODS) as rig, Proxy(consul) as proxy:
        rc = await rig.rc(before, manifest=ASKING)
        farm: RunningFarm = await rig.farm("alive", proxy.address)
        await told(rig, rc.id, before)
        session = await rig.session_of("alive")
        hold = proxy.hold_transaction(k, answer=fate == "is never answered")
        await rig.change(rc.id, replicas_desired=after)
        if await came(hold, told(rig, rc.id, after)):
            await meet(hold, fate, rig, proxy, context)
        await told(rig, rc.id, after)
        dump = await rig.settled(context)
        assert len(dump.pods) == len(dump.intents) == after, context
        assert await rig.session_of("alive") == session, "an unknown outcome is no reason to start again"
        assert farm.owned == {rc.id}
    return hold.count


@pytest.mark.parametrize(("before", "after"), [(0, PODS), (PODS, 0)], ids=["up", "down"])
@pytest.mark.parametrize("fate", first(1, FATES))
async def test_r12_nothing_is_done_twice_and_nothing_left_out(
    consul_dev: str, fate: Fate, before: int, after: int
) -> None:
    steps = await every_k(lambda k: lose(k, fate, consul_dev, before, after), AT_ONCE)
    assert steps >= 3, "at least two transactions of pods and a status"


async def test_r12_what_a_person_changed_meanwhile_stops_what_was_planned_before(consul_dev: str) -> None:
    """Every transaction of a plan is on its way when the count is changed: none of them counts any more."""
    async with rig_on(consul_dev, nodes=PODS) as rig, Proxy(consul_dev) as proxy:
        rc = await rig.rc(0)
        await rig.farm("alive", proxy.address)
        await told(rig, rc.id, 0)
        holds = [proxy.hold_transaction(k) for k in (1, 2)]
        await rig.change(rc.id, replicas_desired=PODS)
        for hold in holds:
            await in_time(hold.reached.wait())
        await rig.change(rc.id, replicas_desired=5)
        for hold in holds:
            hold.release()
        dump = await rig.settled("after the change")
        assert [(len(audit.placed), len(audit.removed)) for _, audit in dump.audits] == [(5, 0)]
