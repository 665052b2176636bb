"""``farmctl audit list``, and ``farmctl events``: changes and open incidents, the newest last."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from farmd import kinds
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import items
from farmd.cli.options import Duration, Whole, command
from farmd.cli.output import looks, render, show
from farmd.commands.mutation import registered
from farmd.kinds import KINDS, OTHERS, family_of, title
from farmd.overview.incidents import incidents
from farmd.tables import changes
from farmd.tables.changes import summary
from farmd.tables.model import Column, Table
from store.audit import AuditReader, Filter
from store.config import FAMILY
from store.errors import InputInvalid
from store.mistakes import nearest
from store.times import moment, rfc3339


@click.group("audit", cls=LazyGroup)
def audit() -> None:
    """Who changed what, when and why."""


@command("list", lists=True)
@click.option(
    "--item", "--rc", "item", default="", shell_complete=items, help="Only what happened to this name or id."
)
@click.option("--kind", default="", help="Only this kind of item, such as rc or node.")
@click.option("--actor", default="", help="Only what this actor did, such as user/ada@host.")
@click.option("--action", default="", help="Only this action, such as rc.delete; delete means all deletions.")
@click.option("--since", type=Duration(), help="Only entries newer than this, such as 2h.")
@click.option(
    "-n", "--limit", type=Whole(1, 100_000), default=50, show_default=True, help="Maximum number of entries."
)
async def list_(
    invocation: Invocation, item: str, kind: str, actor: str, action: str, since: float | None, limit: int
) -> None:
    """Changes, newest first."""

    async def read() -> Table:
        start = 0.0 if since is None else invocation.call.clock.now() - since
        reader = AuditReader(invocation.client, invocation.keys)
        wanted = Filter(kind=family_of(kind), item=_named(item), actor=actor, action=action, since=start)
        rows = await reader.read(wanted, limit)
        if kind and not rows and wanted.kind not in KINDS:
            known = sorted(one.noun or one.family for one in KINDS.values())
            raise InputInvalid(f"--kind: found {kind!r}{nearest(kind, known)}", field="kind")
        return _for_lines(changes.table(rows, [error.message for error in reader.broken]))

    await show(invocation, read)


audit.add_command(list_)


def _for_lines(table: Table) -> Table:
    """The table with the noun of each item, and with one column of prose, which is the one that folds."""
    columns = [column for column in table.columns if column.title != "REASON"]
    own = {"ITEM": lambda row: title(row.kind, row.name or row.id), "CHANGE": changes.told}
    return table._replace(columns=[each._replace(text=own.get(each.title, each.text)) for each in columns])


def _named(item: str) -> str:
    """The name in what ``-o name`` prints: ``rc/hello``, ``pod/web1/hello``, ``job/ml/bert``."""
    noun, _, rest = item.partition("/")
    if noun == FAMILY:
        return rest
    if family_of(noun) in OTHERS:
        return rest.rpartition("/")[2]
    return rest if rest and family_of(noun) in KINDS else item


# ``farmctl events``.


class Event(NamedTuple):
    """Something that happened at a time (seconds since the epoch) to an object."""

    at: float
    what: str
    object: str
    by: str
    tells: str


@command("events")
@click.option("-f", "--follow", is_flag=True, help="Show new events as they arrive, until ^C.")
@click.option("--since", type=Duration(), help="Only entries newer than this, such as 2h.")
@click.option(
    "-n", "--limit", type=Whole(1, 100_000), default=50, show_default=True, help="Maximum number of entries."
)
async def events(invocation: Invocation, follow: bool, since: float | None, limit: int) -> None:
    """What happened, newest last: every change with its author, and the open incidents.

    "audit list" has filters for changes, "alert list" shows the incidents alone.
    """
    start = 0.0 if since is None else invocation.call.clock.now() - since
    seen = set[Event]()

    async def read() -> list[Event]:
        return await _events(invocation, start, limit)

    async for found in looks(invocation, read):
        new = [event for event in found if event not in seen]
        seen.update(new)
        if not found and not follow:
            await registered(invocation.call)
        if new or not follow:
            render(invocation, _table(new), compact=follow)
            sys.stdout.flush()
        if not follow:
            return


async def _events(invocation: Invocation, start: float, limit: int) -> list[Event]:
    client, keys = invocation.client, invocation.keys
    changes = await AuditReader(client, keys).read(Filter(since=start), limit)
    found = [
        Event(
            each.at,
            each.action,
            kinds.title(each.kind, each.name or each.id),
            each.actor,
            _told(summary(each), each.reason),
        )
        for each in changes
    ]
    found += [
        Event(
            each.since,
            f"incident {each.key}",
            kinds.title(each.kind, each.name),
            f"farm/{each.farm}" if each.farm else "",
            each.reason,
        )
        for each in await incidents(client, keys)
        if each.since >= start
    ]
    return sorted(found)[-limit:]


def _told(change: str, reason: str) -> str:
    return "; ".join(part for part in (change, reason) if part)


def _table(rows: Sequence[Event]) -> Table:
    def plain(row: Event) -> dict[str, Any]:
        return row._asdict() | {"at": moment(row.at)}

    return Table(
        kind="Event",
        rows=rows,
        columns=(
            Column("TIME", lambda row: rfc3339(row.at)),
            Column("EVENT", lambda row: row.what),
            Column("OBJECT", lambda row: row.object),
            Column("BY", lambda row: row.by),
            Column("DETAILS", lambda row: row.tells),
        ),
        name=lambda row: row.object,
        plain=plain,
        empty="nothing happened yet",
    )
