"""``farmctl farm list``: the farms, and how many items each holds."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.lazy import LazyGroup
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.tables import nodes
from farmd.tables.model import Table


@click.group("farm", cls=LazyGroup)
def farm() -> None:
    """Farms: the processes that compete for the work."""


@command("list", lists=True)
async def list_(invocation: Invocation) -> None:
    """Farms that are alive, with how many items of each kind of work they hold."""

    async def read() -> Table:
        rows = await overview.farm_rows(invocation.client, invocation.keys)
        return nodes.farm_table(rows, invocation.call.clock.now())

    await show(invocation, read)


farm.add_command(list_)
