"""``farmctl node list | describe``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, target
from farmd.cli.options import command
from farmd.cli.output import document, emit, say_facts, show, text_table
from farmd.tables import nodes as node_tables
from farmd.tables.model import Table
from farmd.tables.pods import pod_table
from store import selectors
from store.keys import valid_segment
from store.nodes import NodeStore
from store.times import moment, plain


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
    store = NodeStore(invocation.client, invocation.keys)
    view = await store.get(valid_segment(name, "node"))
    record, agent = view.record, view.agent
    found = await overview.pods(invocation.client, invocation.keys)
    rows = [row for row in found.rows if row.node == name]
    node = overview.node_row(view, await store.condition(name), sum(not row.gone for row in rows))
    if invocation.settings.output in {"json", "yaml"}:
        content = {
            "name": name,
            "state": node.state,
            "labels": view.labels,
            "stated": node.stated,
            "record": plain(record),
            "agent": plain(agent),
            "lost_since": moment(node.lost_since),
            "absent_since": moment(node.absent_since),
            "left": node.left,
            "waiting": node.waiting,
            "pods": plain(rows),
        }
        emit(invocation, document("Node", content | {"broken": found.broken}))
        return
    if invocation.settings.output == "name":
        click.echo(f"node/{name}")
        return
    now = invocation.call.clock.now()
    say_facts(node_tables.facts(view, node, now), 12)
    click.echo(f"\nPods ({node.pods})")
    for line in text_table(invocation, pod_table(rows, [], now, same="NODE"), indent=2) if rows else ["none"]:
        click.echo(f"  {line}")
