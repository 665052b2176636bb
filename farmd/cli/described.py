"""Shows what ``describe`` tells of one item: facts, pods and its latest changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from farmd.cli.invocation import Invocation
from farmd.cli.output import text_table
from farmd.overview import Pods
from farmd.tables import changes
from farmd.tables.model import Table, clean
from farmd.tables.pods import pod_table, same_owner
from store.audit import Audit


def describe(
    invocation: Invocation,
    told: Sequence[tuple[str, str]],
    found: Pods | None,
    history: Sequence[Audit],
    more: Mapping[str, Table] = MappingProxyType({}),
) -> None:
    """Show the facts, the pods of an owner, ``more`` by title, and the latest changes."""
    now = invocation.call.clock.now()
    for title, text in told:
        click.echo(f"{title + ':':<15}{clean(text)}".rstrip())
    if found is not None:
        click.echo(f"\nPods ({len(found.rows)})")
        shown = pod_table(found.rows, found.broken, now, same=same_owner(found.rows))
        for line in text_table(invocation, shown, indent=2) if found.rows else ["none"]:
            click.echo(f"  {line}")
    for title, table in more.items():
        click.echo(f"\n{title}")
        for line in text_table(invocation, table, indent=2) if table.rows else [table.empty]:
            click.echo(f"  {line}")
    if history or not more:
        click.echo("\nHistory (newest first)")
    for record in history:
        click.echo(f"  {clean(changes.line(record, now))}")
    for broken in found.broken if found is not None else ():
        click.echo(f"farmctl: broken record left out: {clean(broken)}", err=True)
