"""A freeze of jobs in Kubernetes (R18): nothing goes that no person asked for; holding and repair go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from store import codec
from store.failsafe import Failsafe
from tests.fleet import CLOCK
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")


@asynccontextmanager
async def frozen(jobs: Jobs) -> AsyncIterator[None]:
    """A freeze that another farm recorded a minute ago."""
    record = Failsafe(evidence="kubernetes: a test doubts it", by="test", since=CLOCK.now() - 60)
    key = jobs.keys.failsafe("kubejobs")
    await jobs.client.put(key, codec.encode(record))
    yield
    await jobs.client.delete(key)


async def test_a_freeze_holds_the_cleaning_that_no_person_asked_for(jobs: Jobs) -> None:
    jobs.create("cleaned", {"Worker": {"replicas": 2}}, runPolicy={"cleanPodPolicy": "All"})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    async with frozen(jobs):
        await jobs.until_frozen("first")
        for pod in jobs.pods():
            jobs.play(pod, SUCCEEDED)
        await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("cleaned"))
        await jobs.until_status("frozen: kubernetes: a test doubts it")
        assert len(jobs.pods()) == 2
    await jobs.until("no pods", lambda: not jobs.pods())


async def test_a_freeze_lets_new_jobs_get_their_members(jobs: Jobs) -> None:
    async with frozen(jobs):
        await jobs.until_frozen("first")
        jobs.create("new", {"Worker": {"replicas": 2}})
        await jobs.until("two pods", lambda: len(jobs.pods()) == 2)


async def test_a_freeze_lets_a_person_suspend_a_job(jobs: Jobs) -> None:
    jobs.create("rests", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    async with frozen(jobs):
        await jobs.until_frozen("first")
        jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": True}}})
        await jobs.until("no pods", lambda: not jobs.pods())
