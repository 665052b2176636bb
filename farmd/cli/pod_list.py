"""``farmctl pod list``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes
from farmd.cli.options import command
from farmd.cli.output import show
from farmd.tables.model import Table
from farmd.tables.pods import pod_table
from store import selectors
from store.keys import valid_segment
from store.nodes import NodeStore


@command("list", lists=True)
@click.option(
    "-l", "--selector", default="", help="Only pods whose labels match, such as app=hello,tier!=test."
)
@click.option("--node", default="", shell_complete=nodes, help="Only pods on this node.")
async def list_(invocation: Invocation, selector: str, node: str) -> None:
    """Pods, with what their nodes say of them."""
    wanted = selectors.parse(selector)
    if node:
        await NodeStore(invocation.client, invocation.keys).get(valid_segment(node, "node"))

    async def read() -> Table:
        found = await overview.pods(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.labels) and node in {"", row.node}]
        return pod_table(rows, found.broken, invocation.call.clock.now())

    await show(invocation, read)
