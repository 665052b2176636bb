"""Progress of a wait: drawn again and again on a terminal, a new line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import click

from farmd.cli.invocation import Invocation
from farmd.cli.output import drawable, folded
from farmd.commands.waiting import Look, Report, describe
from farmd.tables.model import clean

T = TypeVar("T")
BAR = 20
_BELOW = "    "


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
    """Draws the last look at each object: its own lines, or a bar with its text, folded to the terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, no_color=invocation.settings.no_color, highlight=False)
    drawn, totals = dict[str, list[str]](), dict[str, int]()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as screen:

        def report(step: ProgressLine) -> None:
            totals[step.title] = totals.get(step.title) or step.total
            whole = step._replace(total=totals[step.title])
            own = step.draw(console.width) if step.draw is not None else barred(whole, console.width)
            drawn[step.title] = [drawable(clean(line), console.encoding) for line in own]
            lines = [line for each in drawn.values() for line in each]
            screen.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield report


def barred(step: ProgressLine, width: int) -> list[str]:
    """A look as a bar with its text; where one line has no room for both there is no bar."""
    left = min(max(0, step.left), step.total)
    full = BAR * (step.total - left) // step.total if step.total else 0
    line = f"{step.title} {'█' * full}{'░' * (BAR - full)} {step.text}"
    if step.total and len(line) <= width:
        return [line]
    first, *rest = folded(f"{step.title} {step.text}", width - len(_BELOW))
    return [first, *(f"{_BELOW}{line}" for line in rest)]
