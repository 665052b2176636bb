"""The worker: frozen means nothing goes (R18), trouble stands in its status, a lost claim ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from farmd.farm.errors import ClaimLost
from farmd.housekeeping.facts import PATIENCE_SECONDS
from farmd.housekeeping.kind import CHORES, Housekeeping
from farmd.observe.metrics import table
from store import codec
from store.errors import StoreUnavailable
from store.failsafe import Failsafe
from store.ports import Request
from store.status import Status
from tests.house import HOUR, House, house

QUICK = {"interval": 600.0, "manifest_age": 0.0}


@asynccontextmanager
async def keeping(home: House) -> AsyncIterator[asyncio.Task[None]]:
    """The worker of the chore ``manifests``, at work."""
    task = asyncio.create_task(home.keeper().run())
    renewal = asyncio.create_task(home.session.run())
    try:
        yield task
    finally:
        for each in (task, renewal):
            each.cancel()
        await asyncio.gather(task, renewal, return_exceptions=True)


async def status(home: House) -> Status | None:
    entry = await home.client.read(home.keys.status("housekeeping", "manifests"))
    return None if entry is None else codec.decode(Status, entry.value, entry.key)


async def test_rounds_follow_each_other_and_do_the_work() -> None:
    async with house(**QUICK) as home:
        sha = await home.store_manifest()
        async with keeping(home):
            await home.pass_time(2000)
            assert await home.manifest_entry(sha) is None
            found = await status(home)
            assert found is not None
            assert (found.state, found.farm) == ("converged", "one")


class Frozen:
    """The guard of a farm that doubts."""

    def frozen(self) -> str:
        return "agents: mass loss"


async def freeze(home: House) -> None:
    record = Failsafe(evidence="agents: mass loss", by="farm/two")
    await home.client.put(home.keys.failsafe("rcs"), codec.encode(record))


@pytest.mark.parametrize("whose", ["any farm's", "its own"])
async def test_r18_frozen_nothing_is_collected(whose: str) -> None:
    async with house(**QUICK) as home:
        sha = await home.store_manifest()
        if whose == "its own":
            home.context = replace(home.context, guards={"rcs": Frozen()})
        else:
            await freeze(home)
        async with keeping(home):
            await home.pass_time(20 * HOUR)
            entry = await home.manifest_entry(sha)
            assert entry is not None
            assert entry.flags == 0
            found = await status(home)
            assert found is not None
            assert found.state == "frozen"
            assert found.reason.endswith("agents: mass loss")
            if whose != "its own":
                await home.client.delete(home.keys.failsafe("rcs"))
                await home.pass_time(2 * HOUR + PATIENCE_SECONDS)
                assert await home.manifest_entry(sha) is None
                found = await status(home)
                assert found is not None
                assert found.state == "converged"


async def test_a_store_that_fails_is_told_and_waited_for() -> None:
    async with house(**QUICK) as home:
        sha = await home.store_manifest()
        kind = Housekeeping(home.context)
        assert home.faulty is not None

        async def down(request: Request) -> None:
            if request.path.endswith("/intent/"):
                raise StoreUnavailable("no route")

        home.faulty.before = down
        task = asyncio.create_task(home.keeper(kind).run())
        renewal = asyncio.create_task(home.session.run())
        await home.pass_time(1000)
        found = await status(home)
        assert found is not None
        assert (found.state, kind.blocked()) == ("blocked", 1)
        assert "no route" in found.reason
        home.faulty.before = None
        await home.pass_time(3 * HOUR)
        assert await home.manifest_entry(sha) is None
        assert kind.blocked() == 0
        for each in (task, renewal):
            each.cancel()
        await asyncio.gather(task, renewal, return_exceptions=True)


async def test_a_lost_claim_ends_the_worker() -> None:
    async with house(**QUICK) as home:
        await home.store_manifest()
        async with keeping(home) as task:
            await home.client.delete(home.claim.key)
            await home.pass_time(2000)
            with pytest.raises(ClaimLost):
                await task


async def test_the_status_is_written_on_change_only() -> None:
    async with house(**QUICK) as home:
        async with keeping(home):
            await home.pass_time(2000)
            before = await home.client.read(home.keys.status("housekeeping", "manifests"))
            await home.pass_time(20 * HOUR)
        async with keeping(home):
            await home.pass_time(2000)
        after = await home.client.read(home.keys.status("housekeeping", "manifests"))
        assert before is not None
        assert before == after


async def test_its_items_are_the_chores_and_its_metrics_are_declared() -> None:
    async with house() as home:
        kind = Housekeeping(home.context)
        assert set(kind.items()) == set(CHORES) == {"manifests", "audit", "leavings", "access"}
        assert kind.trusted()
        rows = {row.name: row for row in table()}
        assert "housekeeping" in rows["farmd_cycles_total"].labels["kind"]
        await home.store_manifest()
        await home.collection().round()
        whats = {key[1] for key in home.recorder.counts if key[0] == "farmd_housekeeping_total"}
        assert whats
        assert whats <= set(rows["farmd_housekeeping_total"].labels["what"])
