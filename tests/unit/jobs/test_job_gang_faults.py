"""Gangs whose farm dies, and gangs that want the same room: virtual time, the embedded server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.jobs import Job
from store.nodes import Reserved
from store.ports import Request, Response
from tests.job_fleet import JobFleet, job_fleet
from tests.node_farms import KEYS, base64_of
from tests.toys import is_transaction

SIZE = 40
PORTED = {"pod": {"id": "bert", "command": ["/bin/true"], "ports": {"job": {}}}}


def die_at(jobs: JobFleet, k: int) -> asyncio.Future[str]:
    """Cut off the farm that sends the k-th transaction of pods or intents, after its commit; its name."""
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen = 0

    def watched(name: str) -> Any:
        async def after(request: Request, response: Response) -> None:
            nonlocal seen
            if is_transaction(request) and response.status == 200 and b'"vars":' in base64_of(request):
                seen += 1
                if seen == k and not died.done():
                    died.set_result(name)
            if died.done() and died.result() == name:
                raise asyncio.CancelledError

        return after

    for name, farm in jobs.fleet.farms.items():
        farm.faults.after = watched(name)
    return died


@pytest.mark.parametrize("k", range(1, 5))
async def test_r29_whoever_takes_a_gang_over_starts_each_member_once_and_tells_all_the_same(k: int) -> None:
    """Placing 40 members and releasing them are two transactions each."""
    async with job_fleet("n1", "n2", "n3", "n4", farms=2) as jobs:
        died = die_at(jobs, k)
        job = await jobs.run(worker={"replicas": SIZE, **PORTED}, gang=True, peers=True)

        async def dead() -> bool:
            return died.done()

        await jobs.until(dead)
        await jobs.fleet.crash(died.result())

        async def running() -> bool:
            return len(set(jobs.ran)) == SIZE

        await jobs.until(running, 300)
        await jobs.clock.advance(30)
        assert sorted(jobs.ran) == sorted(f"bert-worker-{index}~0" for index in range(SIZE))
        intents = [intent for intent, _ in (await jobs.intents()).values()]
        told = {(intent.peers, intent.vars["FARMD_MASTER_PORT"]) for intent in intents}
        assert (len(intents), len(told)) == (SIZE, 1)
        assert not any(intent.hold for intent in intents)
        jobs.rule = lambda _: 0
        assert (await jobs.over(job)).outcome == "succeeded"
        assert len(jobs.ran) == SIZE


async def test_r17_two_gangs_that_do_not_fit_together_run_one_after_the_other() -> None:
    """Room for 36, gangs of 24: neither waits on what the other holds, and nobody runs alone."""
    nodes = [f"n{number}" for number in range(12)]
    pod = {"id": "bert", "command": ["/bin/true"], "resources": {"gpu": 1}, "ports": {"job": {}}}
    async with job_fleet(*nodes, farms=2) as jobs:
        await jobs.arrive(*nodes, capacity={"gpu": 3.0})
        fields: dict[str, Any] = {"worker": {"replicas": 24, "pod": pod}, "gang": True, "gang_timeout": 20}
        one, two = await asyncio.gather(jobs.run(name="one", **fields), jobs.run(name="two", **fields))
        holding: dict[str, float] = {}
        longest = 0.0

        async def both() -> bool:
            nonlocal longest
            for job in (one, two):
                held = await holds(jobs, job)
                began = holding.setdefault(job.id, jobs.clock.mono()) if held else None
                if began is None:
                    holding.pop(job.id, None)
                else:
                    longest = max(longest, jobs.clock.mono() - began)
            assert await most_reserved(jobs) <= 3.0
            whole = [name for name in ("one", "two") if len(started(jobs, name)) == 24]
            for name in whole:
                jobs.ends |= dict.fromkeys(started(jobs, name), 0)
            return len(whole) == 2 and all([(await jobs.state(each)).outcome for each in (one, two)])

        await jobs.until(both, 600)
        assert [(await jobs.state(each)).outcome for each in (one, two)] == ["succeeded", "succeeded"]
        assert len(jobs.ran) == 48
        assert longest <= 25.0


def started(jobs: JobFleet, name: str) -> set[str]:
    return {instance for instance in jobs.ran if instance.startswith(f"{name}-")}


async def holds(jobs: JobFleet, job: Job) -> bool:
    return any(intent.hold for intent, _ in (await jobs.intents()).values() if intent.owner == job.id)


async def most_reserved(jobs: JobFleet) -> float:
    books = await jobs.records(KEYS.tree("reserved"), Reserved)
    return max(
        (sum(each.get("gpu", 0.0) for each in book.instances.values()) for book in books.values()),
        default=0.0,
    )
