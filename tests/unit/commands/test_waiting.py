"""A wait for what was asked for: it outlasts an election of Consul's servers, and not their end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from farmd.commands.mutation import Change
from farmd.commands.waiting import until
from farmd.jobs.waiting import STOP, JobView, over
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.errors import NoLeader
from store.jobs import JobStatus, Run
from tests.people import person


class Looks:
    """A look each half second at something that is ready at the end of an outage of so many seconds."""

    def __init__(self, outage: float) -> None:
        self.outage, self.made = outage, 0

    async def __call__(self) -> str:
        self.made += 1
        if 2 <= self.made <= 1 + 2 * self.outage:
            raise NoLeader("read: 500 No cluster leader")
        return "waits" if self.made == 1 else "ready"


async def waited(outage: float, timeout: float) -> list[str]:
    """What is reported of a wait."""
    reported = list[str]()

    async def late(_: str) -> WaitTimeout:
        return WaitTimeout("late")

    async with person() as call:
        await until(call, Looks(outage), lambda now, _: now == "ready", late, timeout, reported.append)
    return reported


async def test_a_wait_goes_on_after_some_seconds_without_a_leader() -> None:
    assert await waited(outage=20.0, timeout=300.0) == ["waits", "ready"]


@pytest.mark.parametrize(("outage", "timeout"), [(60.0, 300.0), (20.0, 5.0)])
async def test_a_wait_ends_with_the_trouble_that_lasts_or_outlasts_its_time(
    outage: float, timeout: float
) -> None:
    with pytest.raises(NoLeader):
        await waited(outage, timeout)


async def test_a_wait_for_the_stop_of_a_job_ends_where_the_job_was_over_before() -> None:
    row = SimpleNamespace(
        record=SimpleNamespace(suspend=True),
        status=JobStatus(state="succeeded"),
        state="succeeded",
        reason="",
        reported=True,
    )

    async def look() -> JobView:
        return JobView(cast(Any, row), Run(outcome="succeeded"))

    async with person() as call:
        with pytest.raises(EndedOtherwise, match="'bert' was over before it was stopped: succeeded"):
            await over(call, Change("jobs", "1", "bert", STOP), look, 300.0, lambda _: None)
