"""``farmctl node drain | undrain``: move all pods off a node, and show the progress."""

from __future__ import annotations

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes, targets
from farmd.cli.noun_edit import going_on
from farmd.cli.options import Duration, command
from farmd.cli.progress import ProgressLine, shown
from farmd.nodes import commands
from farmd.nodes.commands import Look, describe

_NODES = targets("node", nodes)


@command("drain", mutates=True, waits=True)
@_NODES
@click.option(
    "--deadline",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Time until the drain says that it is late; with --force health floors are then ignored.",
)
async def drain(invocation: Invocation, names: tuple[str, ...], deadline: float) -> None:
    """Move all pods off nodes, system pods last, and keep new ones away until undrain.

    Controllers move their pods one by one and keep their health floor. With --force (and --reason) those
    that are left at the deadline go all the same. A repeated drain sets a new deadline.
    """
    prepared = [await commands.drain(invocation.call, name, deadline) for name in names]
    await apply(invocation, prepared)
    if invocation.settings.wait is not True or invocation.settings.dry_run:
        return
    with going_on(invocation, prepared), shown(invocation, _step) as report:
        for name in names:
            await commands.drained(invocation.call, name, invocation.settings.timeout, report)


@command("undrain", mutates=True)
@_NODES
async def undrain(invocation: Invocation, names: tuple[str, ...]) -> None:
    """End drains; pods may come again, unless the node was cordoned before."""
    await apply(invocation, [await commands.undrain(invocation.call, name) for name in names])


def _step(look: Look) -> ProgressLine:
    left = 0 if look.stage == "done" else look.left
    return ProgressLine(f"node/{look.name}", describe(look), left, max(left, 1))
