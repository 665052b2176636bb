"""``farmctl top``: the fleet at a glance; drawn live on a terminal, printed once elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import click

from farmd import overview
from farmd.cli.audit import summary, timestamp
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.output import ago, clean, document, emit, live, on_terminal, plain
from farmd.overview import ControllerRow, NodeRow
from store.audit import Audit, AuditReader, Filter
from store.failsafe import Failsafe
from store.farms import Member

_RECENT = 8


class Fleet(NamedTuple):
    """One look at everything."""

    now: float
    farms: list[Member]
    nodes: list[NodeRow]
    controllers: list[ControllerRow]
    frozen: dict[str, Failsafe]
    recent: tuple[Audit, ...]
    broken: list[str]


@command("top")
@click.option("--once", is_flag=True, help="Print one look, also on a terminal.")
async def top(invocation: Invocation, once: bool) -> None:
    """The fleet at a glance: farms, nodes, controllers, freezes, latest changes. ^C ends it."""
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("Fleet", _plain(await _look(invocation))))
    elif on_terminal(invocation) and not once:
        await live(invocation, lambda: _drawn(invocation))
    else:
        for line in lines(await _look(invocation)):
            click.echo(line)


async def _look(invocation: Invocation) -> Fleet:
    client, keys, now = invocation.client, invocation.keys, invocation.call.clock.now()
    nodes = await overview.nodes(client, keys)
    controllers = await overview.controllers(client, keys)
    return Fleet(
        now=now,
        farms=await overview.farms(client, keys),
        nodes=nodes.rows,
        controllers=controllers.rows,
        frozen=await overview.freezes(client, keys, now),
        recent=await AuditReader(client, keys).read(Filter(), _RECENT),
        broken=[*nodes.broken, *controllers.broken],
    )


async def _drawn(invocation: Invocation) -> Any:
    from rich.text import Text

    return Text("\n".join(lines(await _look(invocation))), no_wrap=True, overflow="ellipsis")


def lines(fleet: Fleet) -> list[str]:
    """The whole look as plain lines."""
    states = Counter(row.state for row in fleet.controllers)
    desired = sum(row.record.replicas_desired for row in fleet.controllers)
    statuses = [row.status for row in fleet.controllers if row.status is not None]
    placed, healthy = sum(s.placed for s in statuses), sum(s.healthy for s in statuses)
    ready = sum(row.agent is not None for row in fleet.nodes)
    shown = [
        f"farms {len(fleet.farms)}  nodes {ready}/{len(fleet.nodes)}  rcs {len(fleet.controllers)}"
        f"  pods {desired} desired, {placed} placed, {healthy} healthy  {timestamp(fleet.now)}"
    ]
    shown += [f"FROZEN {kind}: {freeze.evidence}" for kind, freeze in sorted(fleet.frozen.items())]
    shown += [f"broken: {text}" for text in fleet.broken[:3]]
    if states:
        shown.append("rcs  " + "  ".join(f"{state} {count}" for state, count in sorted(states.items())))
    shown += ["", "FARM              ITEMS  UP"]
    owned = Counter(row.owner for row in fleet.controllers)
    shown += [
        f"{farm.id:<16}  {owned[farm.id]:>5}  {ago(fleet.now, farm.since)}"
        + ("  draining" if farm.draining else "")
        for farm in fleet.farms
    ]
    shown += ["", f"{'RC':<24}  DESIRED  PLACED  HEALTHY  STATE"]
    troubled = sorted(
        fleet.controllers, key=lambda row: (row.state in {"converged", "disabled"}, row.record.name)
    )
    shown += [_controller(row) for row in troubled[:20]]
    shown += ["", f"{'NODE':<24}  PODS  STATE"]
    shown += [f"{row.name:<24}  {row.pods:>4}  {row.state}" for row in fleet.nodes[:20]]
    shown += ["", "LATEST CHANGES"]
    shown += [
        f"{ago(fleet.now, r.at):>4}  {r.actor}  {r.action}  {r.name or r.id}  {summary(r)}"
        for r in fleet.recent
    ]
    return [clean(line) for line in shown]


def _controller(row: ControllerRow) -> str:
    placed = row.status.placed if row.status is not None else "-"
    healthy = row.status.healthy if row.status is not None else "-"
    reason = f": {row.status.reason}" if row.status is not None and row.status.reason else ""
    counts = f"{row.record.replicas_desired:>7}  {placed:>6}  {healthy:>7}"
    return f"{row.record.name:<24}  {counts}  {row.state}{reason}"


def _plain(fleet: Fleet) -> dict[str, Any]:
    return {
        "at": fleet.now,
        "farms": plain(fleet.farms),
        "nodes": plain(fleet.nodes),
        "controllers": [{**plain(row), "state": row.state} for row in fleet.controllers],
        "frozen": plain(fleet.frozen),
        "recent": plain(fleet.recent),
        "broken": fleet.broken,
    }
