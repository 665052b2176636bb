"""``farmctl all``, also ``get all``: every list that people make, one below the other."""

from __future__ import annotations

import click

from farmd import overview
from farmd.apps.scene import standings
from farmd.cli.invocation import Invocation
from farmd.cli.options import command
from farmd.cli.output import document, emit, text_table
from farmd.commands.mutation import registered
from farmd.kinds import asked
from farmd.services import commands as services
from farmd.tables import apps, nodes, nouns
from farmd.tables import services as service_tables
from farmd.tables.model import Table


@command("all")
async def every(invocation: Invocation) -> None:
    """All owners of pods, apps, services and nodes, with their states; "get all" is the same.

    Lists that are empty are left out. "pod list" shows the pods.
    """
    tables = [table for table in await _tables(invocation) if table.rows]
    if not tables:
        await registered(invocation.call)
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        items = [{"kind": table.kind, **table.plain(row)} for table in tables for row in table.rows]
        emit(invocation, document("List", {"items": items}))
    elif output == "name":
        for table in tables:
            for row in table.rows:
                click.echo(table.name(row))
    else:
        shown = [text_table(invocation, _named(table)) for table in tables]
        click.echo(
            "\n\n".join("\n".join(lines) for lines in shown) or "nothing is declared, and there are no nodes"
        )


def _named(table: Table) -> Table:
    """A table whose first column includes the noun: ``rc/web``."""
    first, *others = table.columns
    return table._replace(columns=(first._replace(text=table.name), *others))


async def _tables(invocation: Invocation) -> list[Table]:
    client, keys, now = invocation.client, invocation.keys, invocation.call.clock.now()
    owners = await overview.owners(client, keys)
    found = [nouns.table(asked(family), each.rows, now, each.broken) for family, each in owners.items()]
    found.append(apps.table(*await standings(invocation.call)))
    rows, broken = await services.rows(invocation.call)
    machines = await overview.nodes(client, keys)
    return [
        *found,
        service_tables.table(rows, broken, now),
        nodes.table(machines.rows, machines.broken, now),
    ]
