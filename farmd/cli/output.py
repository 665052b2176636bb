"""Output: tables for people, versioned JSON and YAML for programs, names for pipes.

JSON has ``apiVersion`` and ``kind``; fields are only added under one version. An empty list is shown only
where a cluster is registered: without one, or without the right to read it, Consul answers every list with
nothing. rich is imported only where output is drawn repeatedly.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import msgspec

from farmd.cli.invocation import Invocation
from farmd.commands.mutation import registered
from farmd.tables.manifests import without_values
from farmd.tables.model import STATES, Column, Table, clean, colour_of
from store.errors import StoreUnavailable

if TYPE_CHECKING:
    from rich.text import Text

# Tables: aligned columns for people, with colours on a terminal.
#
# A name or an id is never split: where a table is wider than the terminal, its last column is folded; where
# the others leave no room for it, it goes below its line. Columns between are left out, and named, where the
# rest then fits; a terminal that is too narrow for names and states wraps whole lines.
# Where lines are cropped instead, other columns are left out before a state is, and at last names are cut.
# Control characters are removed from text of the store, because anybody may have written it.

_GAP = "  "
_LEAST_FOLD = 24
_BELOW = "    "
_LEAST_NAME = 8
_NAMES = frozenset({"NAME", "INSTANCE", "POD"})


def drawable(text: str, encoding: str | None) -> str:
    """The text with bars that the encoding has."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(str.maketrans("█░", "#."))
    return text


def hanging(line: str, stream: TextIO) -> list[str]:
    """A line as it is, or on a terminal that is narrower folded, with what goes below it indented."""
    width = width_of(stream)
    if width < 2 * _LEAST_FOLD or len(line) <= width:
        return [line]
    below = " " * (len(line) - len(line.lstrip())) + _BELOW
    wrapper = _Wrapper(width, subsequent_indent=below, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(line)


def lines(
    table: Table,
    *,
    wide: bool = False,
    width: int = 0,
    cropped: int = 0,
    colour: bool = False,
    note: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """The lines of a table. ``width``: of the terminal, 0 for none; ``cropped``: where the caller crops
    lines, 0 for nowhere; ``colour``: with escape sequences; ``note`` gets what is left out for the width.
    """
    columns = [column for column in table.columns if wide or not column.wide]
    cells = [[column.title for column in columns]]
    cells += [[clean(column.text(row)) for column in columns] for row in table.rows]
    if cropped:
        columns, cells = _with_states(columns, cells, cropped)
    elif width:
        kept, left = _fitting(cells, width, wide=wide)
        if left:
            note(f"the terminal has no room for {', '.join(left)}: see -o wide")
        columns, cells = [columns[at] for at in kept], [[line[at] for at in kept] for line in cells]
    widths = _widths(cells)
    room = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1) if width else 0
    shown = []
    for number, cell in enumerate(cells):
        *first, last = cell
        beside, rest = _folded(last.strip(), room, width)
        # Blanks in a style are not stripped below, and the longest row's would wrap a line on the terminal.
        padded = len(first) if beside else len(first) - 1
        head = _GAP.join(
            _styled(text.ljust(size if at < padded else 0), column.title, colour=colour, title=number == 0)
            for at, (text, size, column) in enumerate(zip(first, widths, columns, strict=False))
        )
        tail = _styled(beside, columns[-1].title, colour=colour, title=number == 0) if beside else ""
        shown += [(f"{head}{_GAP}{tail}" if first else tail).rstrip(), *rest]
    return shown


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _fitting(cells: list[list[str]], width: int, *, wide: bool) -> tuple[list[int], list[str]]:
    """The columns that a terminal has room for, and the titles of those with text that are left out.

    The last column needs no room, because it goes below its line, unless it is empty. Empty columns are left
    out first, then, where that helps, those between names and states, from the right.
    """
    titles, *rows = cells
    widths, last = _widths(cells), len(titles) - 1
    empty = [at for at in range(last, 0, -1) if rows and not any(row[at].strip() for row in rows)]
    between = [at for at in range(last - 1, 0, -1) if titles[at] not in STATES | _NAMES and at not in empty]

    def fits(columns: list[int]) -> bool:
        needed = [widths[at] + len(_GAP) for at in columns if at != last or last in empty]
        return sum(needed) - len(_GAP) <= width

    kept = list(range(last + 1))
    for at in [*empty, *(() if wide else between)]:
        if not fits(kept):
            kept.remove(at)
    if not fits(kept):
        return [at for at in range(last + 1) if at not in empty], []
    for at in reversed(between):  # a wide one may have left room for a narrow one
        if at not in kept and fits([*kept, at]):
            kept.append(at)
    return sorted(kept), [titles[at] for at in reversed(between) if at not in kept]


def _with_states(
    columns: list[Column], cells: list[list[str]], width: int
) -> tuple[list[Column], list[list[str]]]:
    """The columns and cells with which the states end within the width, if they can.

    Columns before the last state are left out, the nearest first; of the first column and other names the
    longest is cut.
    """
    last = max((at for at, column in enumerate(columns) if column.title in STATES), default=0)
    widths, kept = _widths(cells), list(range(last + 1))

    def excess() -> int:
        return sum(widths[at] for at in kept) + len(_GAP) * (len(kept) - 1) - width

    for at in range(last - 1, 0, -1):
        if excess() > 0 and columns[at].title not in STATES | _NAMES:
            kept.remove(at)
    names = [at for at in kept if columns[at].title not in STATES]
    while names and excess() > 0 and max(widths[at] for at in names) > _LEAST_NAME:
        longest = max(names, key=lambda at: widths[at])
        widths[longest] = max(_LEAST_NAME, widths[longest] - excess())
    kept += range(last + 1, len(columns))
    return [columns[at] for at in kept], [[_cut(line[at], widths[at]) for at in kept] for line in cells]


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _folded(last: str, room: int, width: int) -> tuple[str, list[str]]:
    """The part of the last column in its own line, and the lines below."""
    if len(last) <= room:
        return last, []
    if room >= _LEAST_FOLD:
        beside, *rest = folded(last, room)
        return beside, textwrap.indent("\n".join(rest), " " * (width - room)).splitlines()
    if width >= 2 * _LEAST_FOLD:
        return "", [f"{_BELOW}{line}" for line in folded(last, width - len(_BELOW))]
    return last, []


class _Wrapper(textwrap.TextWrapper):
    """Folds behind blanks and commas; the hyphens of names do not count."""

    wordsep_simple_re = re.compile(r"(\s+)|(?<=,)")


def folded(text: str, width: int) -> list[str]:
    """The text in lines of that width."""
    return _Wrapper(width, break_on_hyphens=False, break_long_words=False).wrap(text)


def _styled(text: str, column: str, *, colour: bool, title: bool) -> str:
    if not colour:
        return text
    if title:
        return click.style(text, bold=True)
    found = colour_of(column, text)
    return click.style(text, fg=found) if found else text


T = TypeVar("T")

API_VERSION = "farmd/v1"
_PAUSE = 1.0


def document(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """A versioned document."""
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def width_of(stream: TextIO) -> int:
    """The columns of the terminal that a stream is; 0 elsewhere, where no line is folded."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0


def emit(
    invocation: Invocation, data: dict[str, Any], *, compact: bool = False, values: bool = False
) -> None:
    """Print a document to stdout as JSON or YAML; ``values``: those of environments, too."""
    data = data if values else without_values(data)
    if invocation.shown is not None:
        invocation.shown.append(data)
        return
    if invocation.settings.output == "yaml":
        click.echo(as_yaml(data), nl=False)
        return
    text = msgspec.json.encode(data)
    click.echo((text if compact else msgspec.json.format(text)).decode())


def say_facts(told: Sequence[tuple[str, str]], room: int) -> None:
    """Print what ``describe`` tells, beside titles in ``room`` columns; a fact without a title goes on."""
    for title, text in told:
        say_folded(f"{title + ':' if title else '':<{room}}", clean(text))


def say_folded(head: str, text: str) -> None:
    """Print text behind a head; on a terminal long text is folded beside it."""
    width = width_of(sys.stdout)
    room = width - len(head)
    first, *rest = (folded(text, room) if room >= _LEAST_FOLD else [text]) or [""]
    click.echo(f"{head}{first}".rstrip())
    for line in rest:
        click.echo(f"{'':{len(head)}}{line}")


def as_json(data: Mapping[str, Any]) -> str:
    """JSON for people, in the order given."""
    return msgspec.json.format(msgspec.json.encode(data)).decode()


def as_yaml(data: Mapping[str, Any]) -> str:
    """YAML in the order given; text of several lines stays readable."""
    import yaml

    from farmd.commands import scalars

    class Dumper(yaml.SafeDumper):
        """The safe dumper, with block style for text of several lines.

        Text that either version of YAML would read as something else is quoted.
        """

        yaml_implicit_resolvers = scalars.joined(yaml.SafeDumper.yaml_implicit_resolvers)

    def text(dumper: Dumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(dict(data), Dumper=Dumper, sort_keys=False, allow_unicode=True)


def on_terminal(invocation: Invocation) -> bool:
    """Whether stdout is a terminal that may be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not invocation.settings.quiet


def colors(invocation: Invocation) -> bool:
    """Whether colours are wanted (https://no-color.org)."""
    return on_terminal(invocation) and not invocation.settings.no_color and not os.environ.get("NO_COLOR")


async def show(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> None:
    """Show a list once, or with ``--watch`` again whenever it changed.

    Raises:
        NotRegistered: the list is empty, and so is everything here. AccessDenied: the token may not read it.
    """

    if invocation.shown is not None:
        invocation.shown.append(await proven(invocation, read))
        return
    await presented(invocation, partial(proven, invocation, read))


async def proven(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> Table:
    """What is read, where an empty list is proven to be no matter of a missing cluster or right.

    Raises:
        NotRegistered, AccessDenied: it is one.
    """
    table = await read()
    if not table.rows:
        await registered(invocation.call)
        # Consul lists an unreadable tree as empty; a read of one key tells the difference.
        await invocation.client.read(invocation.keys.sentinel(invocation.keys.tree("pods")))
    return table


async def presented(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> None:
    """Show what is read once, or with ``--watch`` again whenever it changed."""
    if not invocation.settings.watch:
        render(invocation, await read())
        return
    if on_terminal(invocation) and invocation.settings.output in {"table", "wide"}:
        await live(invocation, lambda: _drawn(invocation, read))
        return
    await _printed(invocation, read)


async def _printed(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> None:
    """Print a list whenever it changed."""
    last = None
    async for table in looks(invocation, read):
        now = [table.plain(row) for row in table.rows]
        if now != last:
            render(invocation, table, compact=True)
            sys.stdout.flush()
            last = now


async def looks(invocation: Invocation, read: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
    """What is read each second, until an error ends it; it goes on while the store is away for a moment.

    Raises:
        BrokenPipeError: nobody reads stdout any more, which else only the next change would tell.
    """
    yield await read()
    away = False
    while True:
        await invocation.call.clock.sleep(_PAUSE)
        _refuse_closed(sys.stdout)
        try:
            found = await read()
        except StoreUnavailable as error:
            if not away:
                invocation.say(f"farmctl: {clean(error.message)}; trying again")
            away = True
        else:
            away = False
            yield found


async def scrolled(
    invocation: Invocation, draw: Callable[[str], Awaitable[list[str]]], orders: Sequence[str]
) -> None:
    """Draw more lines than fit, again every second, until q or ^C; ``draw`` gets the order that s chose."""
    from rich.console import Console
    from rich.live import Live

    from farmd.cli.keys import pressed

    order, top, shown = 0, 0, await draw(orders[0])
    console = Console(no_color=not colors(invocation))
    with pressed() as keys, Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            page = max(1, shutil.get_terminal_size().lines - 1)
            top = max(0, min(top, len(shown) - page))
            where = f"{top + 1}-{min(len(shown), top + page)} of {len(shown)}"
            foot = f"{where}  q quits  arrows scroll  s sorts: {orders[order]}"
            screen.update(_drawable([*shown[top : top + page], foot]), refresh=True)
            key = await _key(keys)
            if key == "q":
                return
            steps = {
                "up": -1,
                "down": 1,
                "page up": -page,
                "page down": page,
                "home": -top,
                "end": len(shown),
            }
            top = max(0, top + steps.get(key, 0))
            order = (order + (key == "s")) % len(orders)
            if key in {"", "s"}:
                try:
                    shown = await draw(orders[order])
                except StoreUnavailable as error:
                    shown = [clean(error.message), "", *shown]


async def _key(keys: asyncio.Queue[str]) -> str:
    """The next key within a second; empty: none."""
    try:
        return await asyncio.wait_for(keys.get(), _PAUSE)
    except TimeoutError:
        return ""


def _drawable(shown: list[str]) -> Text:
    from rich.text import Text

    text = Text("\n", no_wrap=True, overflow="ellipsis")
    return text.join(Text.from_ansi(line) for line in shown)


def _refuse_closed(stream: TextIO) -> None:
    """Raise BrokenPipeError if the reader of a pipe is gone."""
    try:
        descriptor = stream.fileno()
    except UnsupportedOperation:  # no file of the system's
        return
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def live(invocation: Invocation, draw: Callable[[], Awaitable[list[str]]]) -> None:
    """Draw lines on the terminal again every second until ^C; the last ones stay while the store is away."""
    from rich.console import Console
    from rich.live import Live

    shown = await draw()
    console = Console(no_color=not colors(invocation))
    with Live(_drawable(shown), console=console, auto_refresh=False, vertical_overflow="crop") as screen:
        while True:
            await invocation.call.clock.sleep(_PAUSE)
            try:
                shown = await draw()
            except StoreUnavailable as error:
                screen.update(_drawable([clean(error.message), "", *shown]), refresh=True)
            else:
                screen.update(_drawable(shown), refresh=True)


async def _drawn(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> list[str]:
    found = await read()
    notes = ["", *map(clean, found.notes)] if found.notes else []
    return [*(cropped_table(invocation, found) if found.rows else [found.empty]), *notes]


def render(invocation: Invocation, table: Table, *, compact: bool = False) -> None:
    """Show a list once in the chosen form; broken records go to stderr."""
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        content = {
            "items": [table.plain(row) for row in table.rows],
            "broken": list(table.broken),
            **table.more,
        }
        emit(invocation, document(f"{table.kind}List", content), compact=compact)
    elif output == "name":
        for row in table.rows:
            click.echo(table.name(row))
    elif not table.rows:
        invocation.say(table.empty or "nothing found")
    else:
        for line in text_table(invocation, table):
            click.echo(line)
    for line in table.broken:
        click.echo(f"farmctl: broken record left out: {clean(line)}", err=True)
    for line in table.notes if output in {"table", "wide"} else ():
        click.echo(f"farmctl: {clean(line)}", err=True)


def text_table(invocation: Invocation, table: Table, indent: int = 0) -> list[str]:
    """The lines of a table, as wide as the terminal, if any, less the indentation."""
    width = shutil.get_terminal_size().columns - indent if sys.stdout.isatty() else 0
    return _lines(invocation, table, width=width)


def cropped_table(invocation: Invocation, table: Table) -> list[str]:
    """The lines of a table for a terminal that crops them: states stay in sight."""
    return _lines(invocation, table, cropped=shutil.get_terminal_size().columns)


def _lines(invocation: Invocation, table: Table, *, width: int = 0, cropped: int = 0) -> list[str]:
    wide = invocation.settings.output == "wide"
    note = invocation.call.note
    return lines(table, wide=wide, width=width, cropped=cropped, colour=colors(invocation), note=note)
