"""What is told of a job's pods goes to the log, and not again with every look at the job."""

from __future__ import annotations

from structlog.testing import capture_logs

from farmd.kubernetes.controls import LoggedEvents
from tests.unit.jobs.kubernetes import job
from tests.virtual import VirtualClock


async def test_one_reason_of_a_job_is_told_once_in_ten_minutes() -> None:
    clock = VirtualClock()
    events = LoggedEvents(clock)
    with capture_logs() as told:
        for _ in range(3):
            events.event(job(), "Warning", "ImagePullBackOff", "no such image")
        events.event(job(), "Warning", "Unschedulable", "0 of 3 nodes")
        events.event(job(uid="9"), "Warning", "ImagePullBackOff", "no such image")
        await clock.advance(600)
        events.event(job(), "Warning", "ImagePullBackOff", "no such image")

    assert [each["reason"] for each in told] == [
        "ImagePullBackOff",
        "Unschedulable",
        "ImagePullBackOff",
        "ImagePullBackOff",
    ]
