"""Progress of a wait: one line that is redrawn on a terminal, a new line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import click

from farmd.cli.invocation import Invocation
from farmd.cli.tables import clean
from farmd.commands.waiting import Look, Report, describe

T = TypeVar("T")


class Step(NamedTuple):
    """One look in displayed form. The bar has the first look's ``total`` and ends when none is ``left``."""

    title: str
    text: str
    left: int
    total: int


@contextmanager
def shown(invocation: Invocation, step: Callable[[T], Step]) -> Iterator[Callable[[T], None]]:
    """A function that shows one look on stderr, in the form that ``step`` gives it."""
    if invocation.settings.quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live(invocation) as report:
            yield lambda look: report(step(look))
    else:
        yield lambda look: _echo(step(look))


@contextmanager
def progress(invocation: Invocation) -> Iterator[Report]:
    """A function that shows one look at an owner of pods on stderr."""
    with shown(invocation, _owner) as report:
        yield report


def _owner(look: Look) -> Step:
    # A deletion counts down from the present number, everything else up to the desired one.
    total = look.desired or look.placed
    left = total - look.available if look.desired else look.placed
    return Step(f"{look.noun}/{look.name}", describe(look), left, total)


def _echo(step: Step) -> None:
    click.echo(f"{step.title}: {clean(step.text)}", err=True)


@contextmanager
def _live(invocation: Invocation) -> Iterator[Callable[[Step], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    console = Console(stderr=True, no_color=invocation.settings.no_color)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, tuple[TaskID, int]] = {}

        def report(step: Step) -> None:
            if step.title not in tasks:
                tasks[step.title] = (bar.add_task(step.title, total=step.total, state=""), step.total)
            task, total = tasks[step.title]
            bar.update(task, completed=max(0, total - step.left), state=clean(step.text))

        yield report
