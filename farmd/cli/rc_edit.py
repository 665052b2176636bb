"""``farmctl rc set-replicas``."""

from __future__ import annotations

import click

from farmd.cli.invocation import Invocation
from farmd.cli.names import objects, target
from farmd.cli.noun_edit import carry_out
from farmd.cli.options import Whole, command
from farmd.replication import commands


@command("set-replicas", mutates=True, waits=True, negative_numbers=True)
@target("rc", objects("rcs"))
@click.argument("replicas", type=Whole(0))
async def set_replicas(invocation: Invocation, name: str, replicas: int) -> None:
    """Set the number of pods of a controller. Asks before it lowers the number."""
    await carry_out(invocation, commands.RC, [await commands.set_replicas(invocation.call, name, replicas)])
