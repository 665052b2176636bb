"""``farmctl schedule run-now | pause | resume | history | explain``."""

from __future__ import annotations

from farmd.cli import noun_show
from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import saying
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.schedules import commands
from farmd.schedules.commands import SCHEDULE
from farmd.tables import schedules as tables
from farmd.tables.model import Explained, Table
from store.schedules import KIND

run_now = saying(SCHEDULE, "run-now", commands.run_now)
pause = saying(SCHEDULE, "pause", commands.pause)
resume = saying(SCHEDULE, "resume", commands.resume)


@command("history", lists=True)
@target("schedule", objects(KIND))
async def history(invocation: Invocation, name: str) -> None:
    """The jobs of a schedule that it keeps, and how they ended, the newest first."""

    async def read() -> Table:
        record = (await SCHEDULE.row(invocation.call, name)).record
        return tables.history(record, invocation.call.clock.now())

    await show(invocation, read)


@command("explain")
@target("schedule", objects(KIND))
async def explain(invocation: Invocation, name: str) -> None:
    """Why a schedule does or does not create a job now, and when it will."""
    row = await SCHEDULE.row(invocation.call, name)
    told = tables.why(row.record, row.state, row.reason, invocation.call.clock.now())
    of = {"name": row.record.name, "id": row.record.id, "told": told}
    noun_show.explain(invocation, Explained(told, of, told))
