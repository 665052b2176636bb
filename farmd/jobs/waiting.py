"""Waiting for the end of a job, with its progress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from farmd import overview
from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report
from farmd.jobs.commands import JOB, run_of
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.errors import NotFound
from store.jobs import JobStatus, Run
from store.words import count_of

STOP = "job.stop"
REPORT_LAG = 3.0


@dataclass(frozen=True, slots=True)
class JobView:
    """One look: the job's row, and how far it is."""

    row: overview.Row[Any]
    run: Run


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a job in Consul is over (``over``)."""

    async def look() -> JobView:
        row = await overview.row(call.client, call.keys, JOB.records(call.client, call.keys), change.name)
        return JobView(row, await run_of(call, row.record))

    await over(call, change, look, timeout, report)


async def over(
    call: Call, change: Change, look: Callable[[], Awaitable[JobView]], timeout: float, report: Report
) -> None:
    """Wait until a job succeeded and its status says so; after a stop, until its members are gone.

    Raises:
        EndedOtherwise: it failed, or was over before it was stopped. WaitTimeout: it is not over; it goes on.
        NotFound: it was deleted.
    """
    seen: list[float] = []

    def settled(now: JobView, late: bool) -> bool:
        status = now.row.status
        stopped = now.row.record.suspend and status is not None and now.row.reported and not status.placed
        if not now.run.outcome:
            return change.action == STOP and stopped and status.state == "suspended"
        # The status gets a moment to agree, so that the next command shows the same.
        seen.append(call.clock.mono())
        agrees = status is not None and status.state == now.run.outcome
        return agrees or late or seen[-1] - seen[0] >= REPORT_LAG

    async def late(now: JobView) -> WaitTimeout:
        verb = "stopped" if change.action == STOP else "over"
        return WaitTimeout(
            f"job {change.name!r} is not {verb} after {timeout:g} s: {told(now)}",
            hint=f"it continues; see farmctl job describe {change.name}",
        )

    def show(now: JobView) -> None:
        report(Look(noun="job", name=change.name, state=told(now), desired=0, counts=False))

    try:
        found = await waiting.until(call, look, settled, late, timeout, show, told)
    except NotFound as error:
        raise NotFound(
            f"job {change.name!r} was deleted in the meantime", kind="jobs", id=change.id
        ) from error
    if found.run.outcome and change.action == STOP:
        raise EndedOtherwise(
            f"job {change.name!r} was over before it was stopped: {told(found)}",
            hint=f"farmctl job describe {change.name}",
        )
    if found.run.outcome == "failed":
        raise EndedOtherwise(
            f"job {change.name!r} failed: {why(found.run)}",
            hint=f"farmctl job describe {change.name}; farmctl job logs {change.name}/TYPE/INDEX",
        )


def why(run: Run) -> str:
    """Why a job failed."""
    return ": ".join(part for part in (run.reason, run.message) if part) or "no reason is known"


def told(now: JobView) -> str:
    """One line: ``running, 3 of 8 done, 5 active, 1 restart``."""
    status: JobStatus | None = now.row.status
    if now.run.outcome:
        counts = f", {count_of(now.run.restarts, 'restart')}" if now.run.restarts else ""
        return f"{now.run.outcome}{counts}{f' ({why(now.run)})' if now.run.reason else ''}"
    if status is None:
        return f"{now.row.state}{f': {now.row.reason}' if now.row.reason else ''}"
    restarts = f", {count_of(status.restarts, 'restart')}" if status.restarts else ""
    told = now.row.reason if status.state != "restarting" else ""
    reason = f": {told}" if told else ""
    return f"{now.row.state}, {status.progress}{restarts}{reason}"
