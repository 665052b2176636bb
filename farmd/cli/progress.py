"""Progress of a wait: drawn again and again on a terminal, a new line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from farmd.cli.invocation import Invocation
from farmd.cli.output import drawable
from farmd.commands.waiting import Look, Report, describe
from farmd.tables.model import clean

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class ProgressLine(NamedTuple):
    """One look in displayed form. The bar has the first look's ``total`` and ends when none is ``left``.

    ``draw`` gives the lines for a terminal of some width, in place of a bar.
    """

    title: str
    text: str
    left: int
    total: int
    draw: Callable[[int], list[str]] | None = None


@contextmanager
def shown(invocation: Invocation, step: Callable[[T], ProgressLine]) -> Iterator[Callable[[T], None]]:
    """A function that shows one look on stderr, in the form that ``step`` gives it."""
    if invocation.settings.quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live(invocation) as report:
            yield lambda look: report(step(look))
    else:
        yield _changes(step)


@contextmanager
def progress(invocation: Invocation) -> Iterator[Report]:
    """A function that shows one look at an owner of pods on stderr."""
    with shown(invocation, _owner) as report:
        yield report


def _owner(look: Look) -> ProgressLine:
    # A deletion counts down from the present number, everything else up to the desired one.
    total = look.desired or look.placed
    left = total - look.available if look.desired else look.placed
    return ProgressLine(f"{look.noun}/{look.name}", describe(look), left, total, look.draw)


def _changes(step: Callable[[T], ProgressLine]) -> Callable[[T], None]:
    """A function that prints a look if it says something else than the last one."""
    last = ""

    def report(look: T) -> None:
        nonlocal last
        found = step(look)
        line = f"{found.title}: {clean(found.text)}"
        if line != last:
            click.echo(line, err=True)
        last = line

    return report


@contextmanager
def _live(invocation: Invocation) -> Iterator[Callable[[ProgressLine], None]]:
    """Bars, or lines for looks that draw some; a terminal shows one of them at a time."""
    from rich.console import Console

    console = Console(stderr=True, no_color=invocation.settings.no_color, highlight=False)
    with ExitStack() as stack:
        now: tuple[bool, Callable[[ProgressLine], None]] | None = None

        def report(step: ProgressLine) -> None:
            nonlocal now
            if now is None or now[0] != (step.draw is not None):
                stack.close()
                now = step.draw is not None, stack.enter_context((_lines if step.draw else _bars)(console))
            now[1](step)

        yield report


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[ProgressLine], None]]:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as screen:

        def report(step: ProgressLine) -> None:
            assert step.draw is not None
            drawn = [drawable(clean(line), console.encoding) for line in step.draw(console.width)]
            text = Text("\n".join(drawn), no_wrap=True, overflow="ellipsis")
            screen.update(text, refresh=True)

        yield report


@contextmanager
def _bars(console: Console) -> Iterator[Callable[[ProgressLine], None]]:
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, tuple[TaskID, int]] = {}

        def report(step: ProgressLine) -> None:
            if step.title not in tasks:
                tasks[step.title] = (bar.add_task(step.title, total=step.total, state=""), step.total)
            task, total = tasks[step.title]
            bar.update(task, completed=max(0, total - step.left), state=clean(step.text))

        yield report
