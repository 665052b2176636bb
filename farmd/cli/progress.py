"""Progress of a wait: one line that is redrawn on a terminal, a new line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from farmd.cli.invocation import Invocation
from farmd.cli.output import clean
from farmd.waiting import Look, Report, describe


@contextmanager
def progress(invocation: Invocation) -> Iterator[Report]:
    """A function that shows one look at what owns pods on stderr."""
    if invocation.settings.quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        yield from _live(invocation)
    else:
        yield lambda look: click.echo(f"{look.noun}/{look.name}: {clean(describe(look))}", err=True)


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
                # A deletion counts down from what there was, everything else up to what is wanted.
                total = look.desired or look.placed
                tasks[look.name] = (
                    int(bar.add_task(f"{look.noun}/{look.name}", total=total, state="")),
                    total,
                )
            task, total = tasks[look.name]
            done = look.healthy if look.desired else total - look.placed
            bar.update(task, completed=done, state=clean(describe(look)))  # type: ignore[arg-type]

        yield report
