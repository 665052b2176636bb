"""``farmctl farm list``: the farms, and how many items each holds."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.cli.output import ago, pairs, show
from farmd.cli.tables import Column, Table
from farmd.overview import FarmRow
from store.times import plain


@click.group("farm", cls=LazyGroup)
def farm() -> None:
    """Farms: the processes that compete for the work."""


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """Farms that are alive, with how many items of each kind of work they hold."""

    async def read() -> Table:
        rows = await overview.farm_rows(invocation.client, invocation.keys)
        return _table(rows, invocation.call.clock.now())

    await show(invocation, read)


farm.add_command(list_)


def _table(rows: list[FarmRow], now: float) -> Table:
    columns = (
        Column("NAME", lambda row: row.member.id),
        Column("STATE", lambda row: "draining" if row.member.draining else "ready"),
        Column("ITEMS", lambda row: str(sum(row.items.values()))),
        Column("UP", lambda row: ago(now, row.member.since)),
        Column("VERSION", lambda row: row.member.version),
        Column("HOST", lambda row: row.member.host),
        Column("PID", lambda row: str(row.member.pid or ""), wide=True),
        Column("ADDRESS", lambda row: row.member.address, wide=True),
        Column("KINDS", lambda row: ",".join(row.member.kinds), wide=True),
        Column("SELECTOR", lambda row: row.member.selector, wide=True),
        Column("HOLDS", lambda row: pairs(row.items)),
    )
    return Table(
        kind="Farm",
        rows=rows,
        columns=columns,
        name=lambda row: f"farm/{row.member.id}",
        plain=lambda row: {**plain(row.member), "items": row.items},
        empty="no farm is alive: nothing repairs, moves or adds pods; what runs keeps running",
    )
