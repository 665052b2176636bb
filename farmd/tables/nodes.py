"""The tables of nodes and farms, and the description of one node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from farmd import overview
from farmd.commands.mutation import Call
from farmd.overview import FarmRow, NodeRow, Pods
from farmd.tables.items import Items
from farmd.tables.model import Column, Described, Table, ago, pairs
from farmd.tables.pods import pod_table
from store.families import NODES
from store.farms import Member
from store.features import root_by_farm
from store.keys import valid_segment
from store.nodes import NodeRecords, NodeStore, Taint
from store.presence import at_host
from store.times import moment, plain, rfc3339
from store.words import amount_text

# The table of farms.


def state(member: Member) -> str:
    """Whether a farm takes items, in one word."""
    return "draining" if member.draining else "starting" if member.starting else "ready"


def farm_table(rows: Sequence[FarmRow], now: float) -> Table:
    """One line for each farm; ``now`` in seconds since the epoch."""
    columns = (
        Column("NAME", lambda row: row.member.id),
        Column("STATE", lambda row: state(row.member)),
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


# The table of nodes, and the description of one.


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


def facts(view: NodeRecords, row: NodeRow, now: float) -> list[tuple[str, str]]:
    """The lines of ``describe`` for a node: people's settings, and its agent's facts."""
    name, record, agent = view.name, view.record, view.agent
    capacity = {**(agent.capacity if agent is not None else {}), **record.capacity}
    told = [
        ("Name", name),
        ("State", _state(row, now) + (f": {record.cordon_reason}" if record.cordon_reason else "")),
        ("Labels", pairs(view.labels)),
        *([("Last known", f"{pairs(row.stated)} (stated by its agent)")] if row.stated else []),
        ("Taints", _taints(record.taints)),
        ("Capacity", pairs({what: amount_text(amount) for what, amount in capacity.items()})),
        *([("Volumes", ", ".join(sorted(record.volumes)))] if record.volumes else []),
        *_drain_facts(row, now),
    ]
    if view.unreadable:
        told.append(("Agent", view.unreadable))
    elif agent is None:
        told.append(("Agent", f"not connected{_since(' since', row.absent_since)}"))
    else:
        told.append(
            ("Agent", f"{agent.version} on {agent.host}, pid {agent.pid}, up {ago(now, agent.since)}")
        )
        told.append(("Address", at_host(agent.address, record.address)))
        if why := root_by_farm(agent.features):
            told.append(("Root by", f"a farm's token: {why}"))
        told.append(("Features", ",".join(agent.features)))
        told += [("Denied", agent.denied)] if agent.denied else []
        told += [("Silent", f"{runtime}: {why}") for runtime, why in sorted(agent.doubts.items())]
        told += [("Not removed", f"{path}: {why}") for path, why in sorted(agent.left.items())]
    return told


class NodeItems(Items):
    """The nodes; ``pods`` reads those of one, for callers who know what is placed there."""

    def __init__(self, call: Call, pods: Callable[[str], Awaitable[Pods]] | None = None) -> None:
        super().__init__(call)
        self._pods = pods or self._read

    async def _read(self, name: str) -> Pods:
        found = await overview.pods(self.call.client, self.call.keys)
        return Pods([row for row in found.rows if row.node == name], found.broken)

    async def described(self, name: str) -> Described:
        store, now = NodeStore(self.call.client, self.call.keys), self.call.clock.now()
        view = await store.get(valid_segment(name, "node"))
        found = await self._pods(name)
        row = overview.node_row(view, await store.condition(name), len(found.placed))
        document = {
            "name": name,
            "state": row.state,
            "labels": view.labels,
            "stated": row.stated,
            "record": plain(view.record),
            "agent": plain(view.agent),
            "lost_since": moment(row.lost_since),
            "absent_since": moment(row.absent_since),
            "left": row.left,
            "waiting": row.waiting,
            "pods": plain(found.rows),
        }
        return Described(
            id=name,
            name=name,
            state=row.state,
            reason=row.reason,
            facts=facts(view, row, now),
            tables={f"Pods ({row.pods})": pod_table(found.rows, found.broken, now, same="NODE")},
            row=row,
            audited=NODES.name,
            document=document,
            broken=found.broken,
        )
