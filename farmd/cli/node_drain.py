"""``farmctl node drain | undrain``: move everything off a node, and watch it go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.names import nodes
from farmd.cli.options import Duration, command
from farmd.cli.output import clean
from farmd.nodes import commands, waiting
from farmd.nodes.waiting import Look, Report, describe

_NODES = click.argument("names", nargs=-1, required=True, shell_complete=nodes)


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
    with _progress(invocation) as report:
        for name in names:
            await waiting.drained(invocation.call, name, invocation.settings.timeout, report)


@command("undrain", mutates=True)
@_NODES
async def undrain(invocation: Invocation, names: tuple[str, ...]) -> None:
    """End drains; pods may come again, unless the node was cordoned before."""
    await apply(invocation, [await commands.undrain(invocation.call, name) for name in names])


@contextmanager
def _progress(invocation: Invocation) -> Iterator[Report]:
    """A function that shows one look at a drain on stderr: a bar on a terminal, lines elsewhere."""
    if invocation.settings.quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        yield from _live(invocation)
    else:
        yield lambda look: click.echo(f"node/{look.name}: {clean(describe(look))}", err=True)


def _live(invocation: Invocation) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True, no_color=invocation.settings.no_color)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, tuple[int, int]] = {}

        def report(look: Look) -> None:
            if look.name not in tasks:
                total = max(look.left, 1)
                tasks[look.name] = (int(bar.add_task(f"node/{look.name}", total=total, state="")), total)
            task, total = tasks[look.name]
            gone = total if look.stage == "done" else max(0, total - look.left)
            bar.update(task, completed=gone, state=clean(describe(look)))  # type: ignore[arg-type]

        yield report
