"""``farmctl audit list``."""

from __future__ import annotations

import click

from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import items
from farmd.cli.options import Duration, Whole, command
from farmd.cli.output import show
from farmd.kinds import KINDS, OTHERS, family_of, title
from farmd.tables import changes
from farmd.tables.model import Table
from store.audit import AuditReader, Filter
from store.config import FAMILY
from store.errors import InputInvalid
from store.mistakes import nearest


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
