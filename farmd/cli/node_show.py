"""``farmctl node list | describe``."""

from __future__ import annotations

from collections.abc import Sequence

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, target
from farmd.cli.options import command
from farmd.cli.output import ago, document, emit, pairs, show, text_table
from farmd.cli.pod_table import pod_table
from farmd.cli.tables import Column, Table, clean
from farmd.overview import NodeRow
from store import selectors
from store.keys import valid_segment
from store.nodes import NodeStore, Taint
from store.times import moment, plain, rfc3339


@command("list", lists=True)
@click.option("-l", "--selector", default="", help="Only nodes whose labels match.")
async def list_(invocation: Invocation, selector: str) -> None:
    """All nodes that have a record or an agent."""
    wanted = selectors.parse(selector)

    async def read() -> Table:
        found = await overview.nodes(invocation.client, invocation.keys)
        rows = [row for row in found.rows if wanted.matches(row.labels)]
        return table(rows, found.broken, invocation.call.clock.now())

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
    capacity = {**(agent.capacity if agent is not None else {}), **record.capacity}
    facts = [
        ("Name", name),
        ("State", _state(node, now) + (f": {record.cordon_reason}" if record.cordon_reason else "")),
        ("Labels", pairs(view.labels)),
        ("Taints", _taints(record.taints)),
        ("Capacity", pairs({what: f"{amount:.12g}" for what, amount in capacity.items()})),
        *([("Volumes", ", ".join(sorted(record.volumes)))] if record.volumes else []),
        *_drain_facts(node, now),
    ]
    if view.unreadable:
        facts.append(("Agent", view.unreadable))
    elif agent is None:
        facts.append(("Agent", f"not connected{_since(' since', node.absent_since)}"))
    else:
        facts.append(
            ("Agent", f"{agent.version} on {agent.host}, pid {agent.pid}, up {ago(now, agent.since)}")
        )
        facts.append(("Address", agent.address))
        facts.append(("Features", ",".join(agent.features)))
        facts += [("Silent", f"{runtime}: {why}") for runtime, why in sorted(agent.doubts.items())]
    for title, text in facts:
        click.echo(f"{title + ':':<12}{clean(text)}".rstrip())
    click.echo(f"\nPods ({node.pods})")
    for line in text_table(invocation, pod_table(rows, [], now, same="NODE"), indent=2) if rows else ["none"]:
        click.echo(f"  {line}")


def _taints(taints: Sequence[Taint]) -> str:
    """``dedicated=db:no-schedule,gpu:no-schedule``, as ``node taint`` takes them."""
    shown = ((taint.key + (f"={taint.value}" if taint.value else ""), taint.effect) for taint in taints)
    return ",".join(f"{said}:{effect}" for said, effect in shown)


def _state(row: NodeRow, now: float) -> str:
    """``absent 12s``, ``lost 5m``, ``ready,draining 3 left``: the state with its numbers."""
    numbers = {
        "absent": ago(now, row.absent_since),
        "lost": ago(now, row.lost_since),
        "draining": f"{row.left} left",
    }
    return ",".join(f"{word} {numbers.get(word, '')}".rstrip() for word in row.state.split(","))


def _reason(row: NodeRow) -> str:
    """The reason of the state: why a drain waits, then why the node is cordoned."""
    return "; ".join(part for part in (row.reason, *row.waiting[:1], row.cordon_reason) if part)


def _since(text: str, at: float) -> str:
    return f"{text} {rfc3339(at)}" if at else ""


def _drain_facts(row: NodeRow, now: float) -> list[tuple[str, str]]:
    drain = row.drain
    if drain is None:
        return []
    asked = f"stage {drain.stage}, asked {ago(now, drain.since)} ago by {drain.by}"
    facts = [("Drain", asked if drain.since else f"stage {drain.stage}")]
    if drain.deadline:
        force = ", then health floors are ignored" if drain.force else ""
        facts.append(("Deadline", f"{rfc3339(drain.deadline)}{force}{' (past)' if drain.overdue else ''}"))
    facts += [("Left", str(row.left))] if drain.stage != "done" else []
    return facts + [("Waits for", text) for text in row.waiting]


def table(rows: Sequence[NodeRow], broken: Sequence[str], now: float) -> Table:
    """One line for each node; ``now`` in seconds since the epoch."""
    columns = (
        Column("NAME", lambda row: row.name),
        Column("STATE", lambda row: _state(row, now)),
        Column("PODS", lambda row: str(row.pods)),
        Column("UP", lambda row: ago(now, row.agent.since) if row.agent is not None else ""),
        Column("VERSION", lambda row: row.agent.version if row.agent is not None else "", wide=True),
        Column("ADDRESS", lambda row: row.agent.address if row.agent is not None else "", wide=True),
        Column("TAINTS", lambda row: _taints(row.taints), wide=True),
        Column("LABELS", lambda row: pairs(row.labels), wide=True),
        Column("REASON", _reason),
    )
    return Table(
        kind="Node",
        rows=rows,
        columns=columns,
        name=lambda row: f"node/{row.name}",
        plain=plain,
        broken=broken,
        empty="no nodes",
    )
