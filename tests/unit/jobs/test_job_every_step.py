"""A farm that falls away at exactly the k-th transaction of a job, for every k: another one finishes it.

A batch and a gang of three members with a retry, and an array whose ends need several transactions in a row;
virtual time. What must hold: the same end, the retry counted once, and no slot that ran more often than it
was tried.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from store.jobs import Job
from tests.effort import first
from tests.job_fleet import JobFleet, job_fleet
from tests.node_farms import FATES, Fall

PORTED = {"pod": {"id": "bert", "command": ["/bin/true"], "ports": {"job": {}}}}
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"worker": {"replicas": 3, "restart": "exit-code"}},
    "array": {"worker": {"replicas": 12, "parallelism": 10, "restart": "exit-code"}},
    "gang": {"worker": {"replicas": 3, "restart": "exit-code", **PORTED}, "gang": True, "peers": True},
}
RAN = {
    "batch": {"worker/0~0": 1, "worker/1~0": 1, "worker/1~1": 1, "worker/2~0": 1},
    "array": {"worker/1~1": 1, **{f"worker/{index}~0": 1 for index in range(12)}},
    "gang": {f"worker/{index}~{attempt}": 1 for index in range(3) for attempt in (0, 1)},
}


async def ended(jobs: JobFleet, job: Job) -> None:
    """The job is over, and its end is what it has to be."""
    run = await jobs.over(job, 400)
    assert (run.outcome, run.restarts, run.done) == ("succeeded", 1, {"worker": f"0-{job.size - 1}"})


async def falls(way: str, fate: str, k: int) -> bool:
    """Whether the job has a k-th transaction; what must hold is asserted."""
    async with job_fleet("n1", "n2") as jobs:

        def rule(instance: str) -> int | None:
            if way == "gang" and instance.endswith("~0"):
                return 137 if instance == "bert-worker-1~0" else None
            return 137 if instance == "bert-worker-1~0" else 0

        jobs.rule = rule
        fall = Fall(jobs.fleet.farms["f0"], fate, k, "jobs")
        job = await jobs.run(**WAYS[way])

        async def done() -> bool:
            return fall.reached.is_set() or bool((await jobs.state(job)).outcome)

        await jobs.until(done, 300)
        if not fall.reached.is_set():
            return False
        if fate.startswith("killed"):
            await jobs.fleet.crash("f0")
        await jobs.fleet.start("f1", kinds=("jobs",))
        await ended(jobs, job)
        fall.released.set()
        await jobs.clock.advance(30)
        await ended(jobs, job)
        assert Counter(jobs.runs(job)) == RAN[way], f"{way}, {fate}, k={k}"
        return True


@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("way", list(WAYS))
async def test_r12_a_farm_that_falls_away_at_any_transaction_of_a_job_changes_nothing_about_its_end(
    way: str, fate: str
) -> None:
    k = 1
    while await falls(way, fate, k):
        k += 1
    assert k > 4
