"""Waiting for what happens to jobs in Kubernetes, with progress."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report
from farmd.jobs.waiting import STOP, JobView, over
from farmd.kubernetes.people import view
from farmd.kubernetes.people.found import Jobs, told
from farmd.runtime.errors import WaitTimeout
from store.errors import NotFound
from store.words import count_of


async def end(call: Call, jobs: Jobs, change: Change, timeout: float, report: Report) -> None:
    """Wait until a job is over; after a stop, until its members are gone (``farmd.jobs.waiting.over``)."""
    namespace, _, name = change.name.partition("/")

    async def look() -> JobView:
        found = await jobs.find(namespace, name)
        row = view.row(found, await told(call))
        if change.action == STOP:  # the job's own counters know members that run, not those that leave
            left = sum(not member.over for _, member in view.members(found, await jobs.pods_of(found)))
            row = replace(row, status=replace(row.status, placed=left))
        return JobView(row, view.run(found))

    await over(call, change, look, timeout, report)


async def deletion(call: Call, jobs: Jobs, change: Change, timeout: float, report: Report) -> None:
    """Wait until a job that was marked for deletion is gone, and its members with it.

    Raises:
        WaitTimeout: it is still there.
    """
    namespace, _, name = change.name.partition("/")

    async def look() -> Look:
        found = await jobs.find(namespace, name)
        if found.job.metadata.uid != change.id:
            raise NotFound(f"job {change.name!r} is another one by now")
        left = count_of(len(await jobs.pods_of(found)), "pod")
        return Look(noun="job", name=change.name, state=f"deleting, {left} left", desired=0, counts=False)

    async def late(now: Look) -> WaitTimeout:
        return WaitTimeout(
            f"job {change.name!r} is still there after {timeout:g} s: {now.state}",
            hint="the API server goes on; a pod stays while its node or a finalizer keeps it",
        )

    with suppress(NotFound):
        await waiting.until(call, look, lambda *_: False, late, timeout, report)
