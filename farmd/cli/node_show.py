"""``farmctl node list | describe``: without the modules of farms, which changes of nodes need."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, target
from farmd.cli.noun_show import describe_item, with_usage
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.tables import nodes as node_tables
from farmd.tables.model import Table
from store import selectors


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only nodes whose labels match.")
async def list_(invocation: Invocation, selector: str) -> None:
    """All nodes that have a record or an agent."""
    wanted = selectors.parse(selector)

    async def read() -> Table:
        found = await overview.nodes(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.labels)]
        return node_tables.table(rows, found.broken, invocation.call.clock.now())

    await show(invocation, read)


@command("describe")
@target("node", nodes)
async def describe(invocation: Invocation, name: str) -> None:
    """One node: people's settings, its agent's facts, and its pods."""
    found = await node_tables.NodeItems(invocation.call).described(name)
    if found.row.agent is not None and invocation.settings.output != "name":
        pods = [row for table in found.tables.values() if table.kind == "Pod" for row in table.rows]
        found = await with_usage(invocation, found, pods)
    describe_item(invocation, "Node", "node", found, room=12)
