"""``farmctl service create | delete``."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import items, objects, targets
from farmd.cli.options import command
from farmd.services import commands
from store.services import KIND, NOUN


@command("create", mutates=True)
@click.argument("name", callback=lambda _ctx, _param, value: value.removeprefix(f"{NOUN}/"))
@click.option("--port", required=True, help="The name of a port in the pods' manifest.")
@click.argument("owners", nargs=-1, metavar="[RC]...", shell_complete=items)
async def create(invocation: Invocation, name: str, port: str, owners: tuple[str, ...]) -> None:
    """Name the pods that serve: those of the given owners, such as web or rc/web.

    Rollouts keep the service up to date. Creating an equal one again changes nothing.
    """
    await apply(invocation, [await commands.create(invocation.call, name, port, owners)])


@command("delete", mutates=True)
@targets(NOUN, objects(KIND))
async def delete(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Delete services; the pods stay, but routers do not find them any more."""
    prepared = [await commands.delete(invocation.call, name) for name in names]
    # A name and an id may mean the same service.
    await apply(invocation, list({mutation.change.id: mutation for mutation in prepared}.values()))
