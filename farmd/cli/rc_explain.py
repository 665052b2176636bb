"""``farmctl rc explain``."""

from __future__ import annotations

import click

from farmd import overview
from farmd.cli.invocation import Invocation
from farmd.cli.names import controllers
from farmd.cli.options import command
from farmd.cli.output import clean, document, emit
from farmd.replication.explaining import explain as judge
from scheduler import explain as words


@command("explain")
@click.argument("name", shell_complete=controllers)
async def explain(invocation: Invocation, name: str) -> None:
    """Why each node does or does not get one more pod of a controller."""
    row = await overview.controller(invocation.client, invocation.keys, name)
    verdicts = await judge(invocation.client, invocation.keys, row.record)
    if invocation.settings.output in {"json", "yaml"}:
        content = {"name": row.record.name, "id": row.record.id, **words.document(verdicts)}
        emit(invocation, document("Explanation", content))
        return
    for line in words.text(verdicts):
        click.echo(clean(line))
