"""A worker rests after costly turns: its item takes a fifth of a core at most, whatever its agents report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from farmd.runtime.tasks import metered
from farmd.work.worker import REST, REST_LIMIT
from store import operations
from store.manifests import Manifest, canonical, digest
from store.rcs import ReplicationController
from store.reality import Health, Reality
from tests.node_farms import KEYS, Fleet, NodeFarm, fleet_of

RC = "00aa00aa00aa00aa"
BODY = canonical(Manifest(id="web", command=["x"]))
SECONDS = 10.0


class Cpu:
    """A clock of CPU time by which each step of a turn takes ``step`` seconds."""

    def __init__(self) -> None:
        self.step = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks // 2 * self.step


class World:
    """A farm with one controller of two nodes, one of which has its pod."""

    def __init__(self, fleet: Fleet, farm: NodeFarm, cpu: Cpu) -> None:
        self.fleet = fleet
        self.farm = farm
        self.cpu = cpu

    async def wants(self, replicas: int) -> None:
        rc = ReplicationController(
            id=RC, name="web", manifest=digest(BODY), replicas_desired=replicas, pod_id="web"
        )
        await self.fleet.put(KEYS.record("rcs", RC), rc)

    async def pods(self) -> list[str]:
        """The nodes that should run one."""
        return [key for key in (await self.fleet.client.keys(KEYS.pods(RC))).items if key[-1] != "t"]

    async def reports(self, step: float) -> tuple[int, float]:
        """How many turns there are, and how much CPU time they take, while the pod's agent reports."""
        self.cpu.step, self.cpu.looks = step, 0
        (key,) = await self.pods()
        place, before = key.split("/")[-2:], self._turns()
        for number in range(round(SECONDS / 0.05)):
            health = Health("passing" if number % 2 else "critical", float(number))
            seen = Reality(manifest=digest(BODY), owner=RC, started=1.0, intent=1, health=health)
            await self.fleet.put(KEYS.reality(*place), seen)
            await self.fleet.clock.advance(0.05)
        return self._turns() - before, self.cpu()

    def _turns(self) -> int:
        metrics = self.farm.registry.collect()
        samples = [each for metric in metrics for each in metric.samples if each.name == "farmd_cycles_total"]
        return round(sum(each.value for each in samples))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with fleet_of("n1", "n2") as fleet:
        await fleet.client.transaction([operations.put(KEYS.manifest(digest(BODY)), BODY)])
        cpu = Cpu()
        made = World(fleet, await fleet.start("a", kinds=("rcs",), cpu=cpu), cpu)
        await made.wants(1)
        await fleet.clock.advance(30.0)
        assert len(await made.pods()) == 1
        yield made


async def test_an_item_whose_turns_are_costly_takes_a_fifth_of_a_core_while_its_agents_report() -> None:
    async with world() as made:
        turns, seconds = await made.reports(step=0.1)
        assert turns > 5
        assert seconds <= SECONDS / REST + 0.5


async def test_small_turns_are_followed_by_no_rest() -> None:
    async with world() as made:
        turns, _ = await made.reports(step=0.0)
        assert turns >= SECONDS / 0.1 - 5  # realities are read ten times a second


async def test_a_change_of_the_record_ends_a_rest() -> None:
    async with world() as made:
        await made.reports(step=10.0)
        await made.wants(2)
        await made.fleet.clock.settle()
        assert len(await made.pods()) == 2


async def test_no_rest_is_longer_than_its_limit() -> None:
    async with world() as made:
        turns, _ = await made.reports(step=10.0)
        assert turns >= SECONDS / REST_LIMIT - 2


async def test_cpu_time_of_others_is_not_counted_as_a_coroutines_own() -> None:
    used = 0.0
    turn = asyncio.Event()

    async def others() -> None:
        nonlocal used
        used += 100.0
        turn.set()

    async def work() -> str:
        nonlocal used
        used += 1.0
        await turn.wait()
        used += 2.0
        return "done"

    waiting = asyncio.create_task(others())
    assert await metered(work(), lambda: used) == ("done", 3.0)
    await waiting


async def test_a_metered_coroutine_hears_of_its_cancellation_and_raises_its_own_errors() -> None:
    heard = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            await asyncio.sleep(0)
            raise

    task = asyncio.ensure_future(metered(work(), lambda: 0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await metered(fails(), lambda: 0.0)


async def test_a_metered_coroutine_handles_the_error_of_what_it_waits_for() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            return await answer
        except KeyError:
            return "handled"

    task = asyncio.ensure_future(metered(work(), lambda: 0.0))
    await asyncio.sleep(0)
    answer.set_exception(KeyError())
    assert (await task)[0] == "handled"
