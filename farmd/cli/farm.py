"""``farmctl farm list`` and ``farmctl top``: the farms, and the fleet as it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from farmd import overview
from farmd.apps.scene import AppState, standings
from farmd.cli.datacenters import Datacenters
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.output import cropped_table, document, emit, on_terminal, scrolled, show, text_table
from farmd.cli.usage import FleetUse, FleetUses, most_nodes
from farmd.commands.mutation import registered
from farmd.kinds import KINDS, asked, title
from farmd.overview import FarmRow, NodeRow, Row
from farmd.tables import apps, nodes, nouns
from farmd.tables.changes import summary
from farmd.tables.model import Column, Table, ago, clean
from store.audit import Audit, AuditReader, Filter
from store.errors import InputInvalid
from store.failsafe import Failsafe
from store.times import moment, plain, rfc3339

# ``farmctl farm list``: the farms, and how many items each holds.


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


# ``farmctl top``: the fleet at a glance; drawn live on a terminal, printed once elsewhere.

_RECENT = 8
_MANY = 20
_WELL = frozenset({"converged", "disabled", "ready", "succeeded"})


class FleetView(NamedTuple):
    """One look at everything."""

    now: float
    farms: list[FarmRow]
    nodes: list[NodeRow]
    owners: dict[str, list[Row[Any]]]
    frozen: dict[str, Failsafe]
    recent: tuple[Audit, ...]
    broken: list[str]
    apps: Sequence[AppState] = ()
    use: FleetUse | None = None


@command("top")
@click.option("--once", is_flag=True, help="Print the state once, even on a terminal.")
@click.option(
    "--all-dcs",
    "everywhere",
    is_flag=True,
    help="One line per datacenter, and all objects that are not well.",
)
@click.option("--usage", is_flag=True, help="Also show what pods use, as reported by their nodes' agents.")
@most_nodes
async def top(invocation: Invocation, once: bool, everywhere: bool, usage: bool, most: int) -> None:
    """The fleet at a glance: farms, nodes, what owns pods, freezes, latest changes.

    q or ^C ends it, arrows, space and PgUp scroll, s sorts by trouble or by name. With --usage the agents of
    the nodes with most pods are asked every 5 s, at most --max-nodes of them.
    """
    uses = FleetUses(invocation, most) if usage else None
    if usage and everywhere:
        raise InputInvalid("--usage: found with --all-dcs, expected one of them", field="usage")
    if invocation.settings.output == "name":
        raise InputInvalid("output: found 'name', expected table, json or yaml", field="output")
    if everywhere:
        await _everywhere(invocation, once=once)
        return
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("Fleet", _plain(await _look(invocation, uses))))
    elif on_terminal(invocation) and not once:
        await scrolled(
            invocation, lambda order: _lines(invocation, uses, cropped_table, order), ("trouble", "name")
        )
    else:
        for line in await _lines(invocation, uses, text_table):
            click.echo(line)


async def _lines(
    invocation: Invocation,
    uses: FleetUses | None,
    draw: Callable[[Invocation, Table], list[str]],
    order: str = "",
) -> list[str]:
    return lines(await _look(invocation, uses), partial(draw, invocation), order)


async def _look(invocation: Invocation, uses: FleetUses | None = None) -> FleetView:
    client, keys, now = invocation.client, invocation.keys, invocation.call.clock.now()
    found = await overview.nodes(client, keys)
    owners = await overview.owners(client, keys)
    standing, broken = await standings(invocation.call)
    if not (found.rows or any(each.rows for each in owners.values())):
        await registered(invocation.call)
    return FleetView(
        now=now,
        farms=await overview.farm_rows(client, keys),
        nodes=found.rows,
        owners={family: each.rows for family, each in owners.items()},
        apps=standing,
        frozen=await overview.freezes(client, keys, now),
        recent=await AuditReader(client, keys).read(Filter(), _RECENT),
        broken=[*found.broken, *(text for each in owners.values() for text in each.broken), *broken],
        use=await uses.read() if uses is not None else None,
    )


def lines(fleet: FleetView, draw: Callable[[Table], list[str]], order: str = "") -> list[str]:
    """The look in lines; owners of pods that are not the main ones are shown if there are any.

    ``order``: all rows, by ``trouble`` or by ``name``; empty: the first rows, those in trouble before others.
    """
    well = frozenset() if order == "name" else _WELL
    most = None if order else _MANY
    ready = _ready(fleet)
    owners = {family: rows for family, rows in fleet.owners.items() if rows or KINDS[family].main}
    counts = "  ".join(f"{_label(family)}s {len(rows)}" for family, rows in owners.items())
    counts += f"  apps {len(fleet.apps)}" if fleet.apps else ""
    shown = [
        f"farms {len(fleet.farms)}  nodes {ready}/{len(fleet.nodes)}  {counts}",
        f"{_pods(fleet)}  {rfc3339(fleet.now)}",
    ]
    shown += [f"FROZEN {kind}: {freeze.evidence}" for kind, freeze in sorted(fleet.frozen.items())]
    shown += [f"broken: {text}" for text in fleet.broken[:3]]
    for family, rows in owners.items():
        shown += _states(f"{_label(family)}s", [row.state for row in rows])
    shown += _states("apps", list(map(apps.state, fleet.apps)))
    managers = list(dict.fromkeys(row.managed for rows in owners.values() for row in rows if row.managed))
    if managers:
        shown += ["", "UNDER WAY", *managers[:_MANY], *_more(len(managers), "under way")]
    use = ["", *fleet.use.lines(draw)] if fleet.use is not None else []
    drawn = (_first(title, table, draw, most) for title, table in _tables(fleet, owners, well))
    tables = [line for each in drawn for line in ["", *each]]
    return [*map(clean, shown), *use, *tables, "", "LATEST CHANGES", *draw(_changes(fleet))]


def _changes(fleet: FleetView) -> Table:
    columns = (
        Column("AGO", lambda row: ago(fleet.now, row.at)),
        Column("ACTOR", lambda row: row.actor),
        Column("ACTION", lambda row: row.action),
        Column("ITEM", lambda row: title(row.kind, row.name or row.id)),
        Column("CHANGE", summary),
    )
    return Table("Change", fleet.recent, columns, name=str, plain=plain)


def _label(family: str) -> str:
    return KINDS[family].label or KINDS[family].one


def _tables(
    fleet: FleetView, owners: dict[str, list[Row[Any]]], well: frozenset[str]
) -> Iterator[tuple[str, Table]]:
    """The lists of farms, owners, apps and nodes; those whose state is ``well`` come last."""
    processes = sorted(fleet.farms, key=lambda row: (nodes.state(row.member) in well, row.member.id))
    yield "farm", nodes.farm_table(processes, fleet.now)
    for family, rows in owners.items():
        owned = sorted(rows, key=lambda row: (row.state in well, row.record.name))
        yield _label(family), nouns.table(asked(family), owned, fleet.now)
    if fleet.apps:
        bundles = sorted(fleet.apps, key=lambda row: (apps.state(row) in well, row.name))
        yield "app", apps.table(bundles, ())
    machines = sorted(fleet.nodes, key=lambda row: (row.state in well, row.name))
    yield "node", nodes.table(machines, (), fleet.now)


def _first(title: str, table: Table, draw: Callable[[Table], list[str]], most: int | None) -> list[str]:
    """The first rows under the name of what they are, and how many more there are; None: all rows."""
    name, *others = table.columns
    columns = [name._replace(title=title.upper()), *others]
    shown = draw(table._replace(rows=table.rows[:most], columns=columns))
    return [*shown, *(_more(len(table.rows), f"{title}s") if most is not None else [])]


def _more(count: int, what: str) -> list[str]:
    """How many more there are than are shown."""
    return [f"... and {count - _MANY} more {what}"] if count > _MANY else []


def _pods(fleet: FleetView) -> str:
    """All pods in numbers. For an item that ends by itself, the desired pods are those that exist,
    because its slots may be over or waiting.
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


# ``farmctl top --all-dcs``: one line for each datacenter, and the objects in trouble of all.


async def _everywhere(invocation: Invocation, *, once: bool) -> None:
    """Show all datacenters.

    Raises:
        Exit: some datacenters failed.
    """
    async with Datacenters(invocation) as all_of_them:

        async def look(_: str = "") -> list[str]:
            answers = await all_of_them.ask(_look)
            return [*_summary(invocation, answers.found), *map(clean, answers.told)]

        if invocation.settings.output in {"table", "wide"} and on_terminal(invocation) and not once:
            await scrolled(invocation, look, ("trouble",))
            return
        answers = await all_of_them.ask(_look)
    if invocation.settings.output in {"json", "yaml"}:
        fleets = [{"dc": name, **_plain(fleet)} for name, fleet in answers.found.items()]
        emit(invocation, document("FleetList", {"items": fleets, "unanswered": answers.plain}))
    else:
        for line in _summary(invocation, answers.found):
            click.echo(line)
    answers.end()


def _summary(invocation: Invocation, fleets: Mapping[str, FleetView]) -> list[str]:
    """The table of datacenters, and that of what is in trouble in any of them."""
    seen = list(fleets.items())
    families = [
        family
        for family in KINDS
        if any(fleet.owners.get(family) or (KINDS[family].main and fleet.owners) for _, fleet in seen)
    ]
    columns = [
        Column("DC", lambda row: row[0]),
        Column("FARMS", lambda row: str(len(row[1].farms))),
        Column("NODES", lambda row: f"{_ready(row[1])}/{len(row[1].nodes)}"),
        *(_count(family) for family in families),
        Column("APPS", lambda row: str(len(row[1].apps))),
        Column("PODS", lambda row: _pods(row[1]).removeprefix("pods ")),
        Column("FROZEN", lambda row: ",".join(sorted(row[1].frozen)) or "-"),
    ]
    table = Table("Fleet", seen, columns, name=lambda row: str(row[0]), plain=lambda row: _plain(row[1]))
    shown = text_table(invocation, table) if seen else []
    troubles = [(name, *each) for name, fleet in seen for each in _troubles(fleet)]
    if troubles:
        titles = ("DC", "OBJECT", "STATE", "REASON")
        columns = [Column(title, _cell(place)) for place, title in enumerate(titles)]
        rows = troubles[:_MANY]
        ailing = Table("Trouble", rows, columns, name=lambda row: f"{row[0]}/{row[1]}", plain=dict)
        shown += ["", *text_table(invocation, ailing), *_more(len(troubles), "objects")]
    return shown


def _count(family: str) -> Column:
    return Column(f"{_label(family)}s".upper(), lambda row: str(len(row[1].owners.get(family, ()))))


def _cell(place: int) -> Callable[[Any], str]:
    return lambda row: str(row[place])


def _ready(fleet: FleetView) -> int:
    return sum(row.agent is not None for row in fleet.nodes)


def _troubles(fleet: FleetView) -> Iterator[tuple[str, str, str]]:
    """What is not well: object, state, reason."""
    for family, rows in fleet.owners.items():
        for row in rows:
            if row.state not in _WELL:
                yield f"{KINDS[family].noun}/{row.record.name}", row.state, row.reason
    for app in fleet.apps:
        if apps.state(app) not in _WELL:
            yield f"app/{app.name}", apps.state(app), apps.reason(app)
    for node in fleet.nodes:
        if node.state not in _WELL:
            yield f"node/{node.name}", node.state, ""


def _plain(fleet: FleetView) -> dict[str, Any]:
    return {
        "at": moment(fleet.now),
        "farms": [{**plain(row.member), "items": row.items} for row in fleet.farms],
        "nodes": plain(fleet.nodes),
        **{
            KINDS[family].many.replace(" ", ""): [{**plain(row), "state": row.state} for row in rows]
            for family, rows in fleet.owners.items()
        },
        "apps": [apps.plain_row(row) for row in fleet.apps],
        "frozen": plain(fleet.frozen),
        "recent": plain(fleet.recent),
        "broken": fleet.broken,
        **({"usage": fleet.use.document} if fleet.use is not None else {}),
    }
