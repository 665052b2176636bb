"""What the page and ``farmctl job describe`` add to the description of a job."""

from __future__ import annotations

from typing import NamedTuple

from farmd.commands.mutation import Call
from farmd.jobs.commands import MEND, run_of
from farmd.tables import manifests
from farmd.tables.model import Column, Details, Table, ago
from store.errors import RecordInvalid
from store.jobs import Job, Run
from store.times import plain
from store.words import count_of

MOST_RETRIES = 50


class Retry(NamedTuple):
    """A slot that was tried before: when that ended, why, and how its output is read."""

    slot: str
    attempt: int
    failed_at: float
    cause: str
    logs: str


async def besides(call: Call, job: Job) -> Details:
    """What members run, how far the job is, and the slots that were tried again; or why its run, which says
    that, does not decode, with its key and the command that knows a way out.
    """
    run: Run | str
    try:
        run = await run_of(call, job)
    except RecordInvalid as error:
        run = f"{error.message}; {MEND}"
    runs = [
        (f"Runs {each.name}", text)
        for each in job.types
        for _, text in (await manifests.read(call, each.manifest))[1][:1]
    ]
    told, tables = facts(job, run, call.clock.now())
    if isinstance(run, str):
        return Details([*runs, *told], tables, {"run": None}, [run])
    return Details([*runs, *told], tables, {"run": plain(run)})


def facts(job: Job, run: Run | str, now: float) -> tuple[list[tuple[str, str]], dict[str, Table]]:
    """The facts of a run, or why there is none, and the slots that were tried again last."""
    if isinstance(run, str):
        return [("Attempt", f"unknown: {run}")], {}
    counts = f"{run.attempt}; retries count {run.restarts} of {job.backoff_limit}"
    rows = retries(job, run)
    last = {each.slot for each in sorted(rows, key=lambda row: row.failed_at)[-MOST_RETRIES:]}
    title = f"Tried again ({count_of(len(rows), 'slot')}"
    title += f", the last {MOST_RETRIES})" if len(rows) > MOST_RETRIES else ")"
    shown = [each for each in rows if each.slot in last]
    return [("Attempt", counts), *progress(run)], {title: _retries(shown, now)} if rows else {}


def retries(job: Job, run: Run) -> list[Retry]:
    """The slots that were tried before, by type and index."""
    return [
        Retry(
            f"{name}/{index}",
            slot.attempt,
            slot.failed_at,
            slot.cause or "its own exit",
            f"farmctl job logs {job.name}/{name}/{index} --attempt {slot.attempt - 1}",
        )
        for name, slots in run.slots.items()
        for index, slot in sorted(slots.items(), key=lambda each: int(each[0]))
    ]


def _retries(rows: list[Retry], now: float) -> Table:
    return Table(
        kind="Retry",
        rows=rows,
        columns=(
            Column("SLOT", lambda row: row.slot),
            Column("ATTEMPT", lambda row: str(row.attempt)),
            Column("LAST END", lambda row: ago(now, row.failed_at)),
            Column("CAUSE", lambda row: row.cause),
            Column("OUTPUT BEFORE", lambda row: row.logs),
        ),
        name=lambda row: f"slot/{row.slot}",
        plain=plain,
        empty="no slot",
    )


def progress(run: Run) -> list[tuple[str, str]]:
    """What is durable of a job: slots that are done or given up, and its end."""
    found = [(f"Done {name}", text) for name, text in run.done.items() if text]
    found += [(f"Given up {name}", text) for name, text in run.given_up.items() if text]
    if run.outcome:
        found.append(("Outcome", ": ".join(filter(None, (run.outcome, run.reason, run.message)))))
    return found
