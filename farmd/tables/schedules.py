"""What is added to the description of a schedule: its next times, and its jobs."""

from __future__ import annotations

from itertools import islice

from farmd.commands.mutation import Call
from farmd.schedules import times
from farmd.tables.model import Column, Details, Table, ago
from store.errors import InputInvalid
from store.schedules import Fired, Schedule
from store.times import plain, rfc3339

NEXT = 5


async def besides(call: Call, schedule: Schedule) -> Details:
    """The next times in the schedule's zone and in UTC, and its jobs."""
    table = history(schedule, call.clock.now())
    return Details(upcoming(schedule, call.clock.now()), {"Jobs (newest first)": table})


def upcoming(schedule: Schedule, now: float) -> list[tuple[str, str]]:
    """The next times, or why there are none."""
    if schedule.disabled:
        return [("Next", f"none while it is paused; farmctl schedule resume {schedule.name}")]
    shift = times.offset(schedule)
    try:
        found = list(islice(times.after(schedule, max(schedule.last, now - shift)), NEXT))
        return [
            ("Next" if not at else "", times.shown(each + shift, schedule.zone))
            for at, each in enumerate(found)
        ]
    except InputInvalid as error:
        return [("Next", f"unknown: {error.message}")]


def history(schedule: Schedule, now: float) -> Table:
    """The jobs of a schedule that it knows, the newest first."""
    return Table(
        kind="ScheduledJob",
        rows=list(reversed(schedule.fired)),
        columns=(
            Column("DUE", lambda row: rfc3339(row.due)),
            Column("JOB", lambda row: row.name),
            Column("OUTCOME", _outcome),
            Column("ENDED", lambda row: ago(now, row.ended) if row.ended else "-"),
            Column("ASKED BY", lambda row: row.by or "its times"),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"job/{row.name}",
        plain=plain,
        empty="no job yet",
    )


def _outcome(row: Fired) -> str:
    return row.outcome or ("stopping" if row.stopping else "running")


def why(schedule: Schedule, state: str, reason: str, now: float) -> list[str]:
    """Why a schedule does or does not make a job at present, a line each."""
    told = [f"{schedule.name} is {state}{f': {reason}' if reason else ''}"]
    told += [f"{title.lower() or 'then'}: {text}" for title, text in upcoming(schedule, now)]
    if schedule.last:
        told.append(f"processed until: {times.shown(schedule.last, schedule.zone)}")
    if shift := times.offset(schedule):
        told.append(f"jitter: each job is made {shift:g} s after its time")
    for each in schedule.active:
        rule = {"forbid": "times are skipped until it ends", "replace": "the next time deletes it"}
        told.append(f"{each.name} runs: {rule.get(schedule.overlap, 'the next job runs beside it')}")
    if schedule.missed or schedule.skipped:
        told.append(f"{schedule.missed} times missed, {schedule.skipped} skipped since it was created")
    return told
