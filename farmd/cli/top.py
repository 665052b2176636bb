"""``farmctl top``: the fleet at a glance; drawn live on a terminal, printed once elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.output import document, emit, live, on_terminal
from farmd.commands.mutation import registered
from farmd.dispatch.standing import Standing, standings
from farmd.kinds import KINDS
from farmd.overview import FarmRow, NodeRow, Row
from farmd.tables.apps import plain_row
from farmd.tables.apps import ready as ready_of_app
from farmd.tables.apps import reason as reason_of_app
from farmd.tables.apps import state as state_of_app
from farmd.tables.changes import summary
from farmd.tables.farms import state as state_of_farm
from farmd.tables.model import clean
from farmd.tables.words import ago
from store.audit import Audit, AuditReader, Filter
from store.errors import InputInvalid
from store.failsafe import Failsafe
from store.times import moment, plain, rfc3339

_RECENT = 8
_MANY = 20


class Fleet(NamedTuple):
    """One look at everything."""

    now: float
    farms: list[FarmRow]
    nodes: list[NodeRow]
    owners: dict[str, list[Row[Any]]]
    frozen: dict[str, Failsafe]
    recent: tuple[Audit, ...]
    broken: list[str]
    apps: Sequence[Standing] = ()


@command("top")
@click.option("--once", is_flag=True, help="Print one look, also on a terminal.")
async def top(invocation: Invocation, once: bool) -> None:
    """The fleet at a glance: farms, nodes, what owns pods, freezes, latest changes. ^C ends it."""
    if invocation.settings.output == "name":
        raise InputInvalid("output: found 'name', expected table, json or yaml", field="output")
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("Fleet", _plain(await _look(invocation))))
    elif on_terminal(invocation) and not once:
        await live(invocation, lambda: _lines(invocation))
    else:
        for line in await _lines(invocation):
            click.echo(line)


async def _lines(invocation: Invocation) -> list[str]:
    return lines(await _look(invocation))


async def _look(invocation: Invocation) -> Fleet:
    client, keys, now = invocation.client, invocation.keys, invocation.call.clock.now()
    nodes = await overview.nodes(client, keys)
    owners = await overview.owners(client, keys)
    apps, broken = await standings(invocation.call)
    if not (nodes.rows or any(found.rows for found in owners.values())):
        await registered(invocation.call)
    return Fleet(
        now=now,
        farms=await overview.farm_rows(client, keys),
        nodes=nodes.rows,
        owners={family: found.rows for family, found in owners.items()},
        apps=apps,
        frozen=await overview.freezes(client, keys, now),
        recent=await AuditReader(client, keys).read(Filter(), _RECENT),
        broken=[*nodes.broken, *(text for found in owners.values() for text in found.broken), *broken],
    )


def lines(fleet: Fleet) -> list[str]:
    """The look as plain lines; kinds other than the main one are shown if they have any records."""
    ready = sum(row.agent is not None for row in fleet.nodes)
    owners = {
        KINDS[family].label or KINDS[family].one: rows
        for family, rows in fleet.owners.items()
        if rows or KINDS[family].main
    }
    counts = "  ".join(f"{label}s {len(rows)}" for label, rows in owners.items())
    counts += f"  apps {len(fleet.apps)}" if fleet.apps else ""
    shown = [
        f"farms {len(fleet.farms)}  nodes {ready}/{len(fleet.nodes)}  {counts}"
        f"  {_pods(fleet)}  {rfc3339(fleet.now)}"
    ]
    shown += [f"FROZEN {kind}: {freeze.evidence}" for kind, freeze in sorted(fleet.frozen.items())]
    shown += [f"broken: {text}" for text in fleet.broken[:3]]
    shown += [
        line for label, rows in owners.items() for line in _states(f"{label}s", [row.state for row in rows])
    ]
    shown += _states("apps", list(map(state_of_app, fleet.apps)))
    managers = dict.fromkeys(row.managed for rows in owners.values() for row in rows if row.managed)
    shown += ["", "UNDER WAY", *_some(list(managers), "under way")] if managers else []
    shown += ["", "FARM              ITEMS  UP"]
    shown += [_farm(row, fleet.now) for row in fleet.farms]
    for label, rows in owners.items():
        shown += ["", *_owners(label.upper(), rows)]
    shown += ["", *_apps(fleet.apps)] if fleet.apps else []
    shown += ["", f"{'NODE':<24}  PODS  STATE"]
    troubled = sorted(fleet.nodes, key=lambda row: (row.state == "ready", row.name))
    shown += _some([f"{row.name:<24}  {row.pods:>4}  {row.state}" for row in troubled], "nodes")
    shown += ["", "LATEST CHANGES"]
    shown += [
        f"{ago(fleet.now, r.at):>4}  {r.actor}  {r.action}  {r.name or r.id}  {summary(r)}"
        for r in fleet.recent
    ]
    return [clean(line) for line in shown]


def _some(shown: list[str], what: str) -> list[str]:
    """The first lines, and how many more there are."""
    more = len(shown) - _MANY
    return [*shown[:_MANY], f"... and {more} more {what}"] if more > 0 else shown


def _pods(fleet: Fleet) -> str:
    """All pods in numbers. Of an item that ends by itself, whose slots may be over or wait, those are desired
    that stand.
    """
    told = [row.status for found in fleet.owners.values() for row in found if row.status is not None]
    desired = sum(
        row.desired if not KINDS[family].ended else row.status.placed if row.status is not None else 0
        for family, found in fleet.owners.items()
        for row in found
    )
    placed, healthy = sum(status.placed for status in told), sum(status.healthy for status in told)
    return f"pods {desired} desired, {placed} placed, {healthy} healthy"


def _states(what: str, states: Sequence[str]) -> list[str]:
    counts = sorted(Counter(states).items())
    return ["  ".join([what, *(f"{state} {count}" for state, count in counts)])] if states else []


def _farm(row: FarmRow, now: float) -> str:
    state = state_of_farm(row.member)
    told = f"  {state}" if state != "ready" else ""
    return f"{row.member.id:<16}  {sum(row.items.values()):>5}  {ago(now, row.member.since)}{told}"


def _owners(title: str, rows: Sequence[Row[Any]]) -> list[str]:
    """The owners in trouble first."""
    troubled = sorted(rows, key=lambda row: (row.state in {"converged", "disabled"}, row.record.name))
    head = f"{title:<24}  DESIRED  PLACED  HEALTHY  STATE"
    return [head, *_some([_owner(row) for row in troubled], "")]


def _owner(row: Row[Any]) -> str:
    placed = row.status.placed if row.status is not None else "-"
    healthy = row.status.healthy if row.status is not None else "-"
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.record.name:<24}  {row.desired:>7}  {placed:>6}  {healthy:>7}  {row.state}{reason}"


def _apps(rows: Sequence[Standing]) -> list[str]:
    """The apps in trouble first."""
    troubled = sorted(rows, key=lambda row: (state_of_app(row) == "converged", row.name))
    return [f"{'APP':<24}  REVISION  REACHED  READY  STATE", *_some(list(map(_app, troubled)), "apps")]


def _app(row: Standing) -> str:
    assert row.stored is not None
    told = f"{state_of_app(row)}: {reason_of_app(row)}".removesuffix(": ")
    reached = row.state.reached or "-"
    return f"{row.name:<24}  {row.stored.record.revision:>8}  {reached:>7}  {ready_of_app(row):>5}  {told}"


def _plain(fleet: Fleet) -> dict[str, Any]:
    return {
        "at": moment(fleet.now),
        "farms": [{**plain(row.member), "items": row.items} for row in fleet.farms],
        "nodes": plain(fleet.nodes),
        **{
            KINDS[family].many.replace(" ", ""): [{**plain(row), "state": row.state} for row in rows]
            for family, rows in fleet.owners.items()
        },
        "apps": [plain_row(row) for row in fleet.apps],
        "frozen": plain(fleet.frozen),
        "recent": plain(fleet.recent),
        "broken": fleet.broken,
    }
