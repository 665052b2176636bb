"""Showing things: tables for people, versioned JSON and YAML for programs, names for pipes.

JSON carries ``apiVersion`` and ``kind``; fields are only ever added under one version. rich is
imported only where a terminal is on the other end. Text from the store loses its control characters:
it may have been written by anybody.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from farmd.cli.invocation import Invocation

API_VERSION = "farmd/v1"
_PAUSE = 1.0
_STYLES = {
    "converged": "green",
    "ready": "green",
    "passing": "green",
    "progressing": "yellow",
    "pending": "yellow",
    "deleting": "yellow",
    "draining": "yellow",
    "unowned": "yellow",
    "blocked": "red",
    "frozen": "red",
    "absent": "red",
    "lost": "red",
    "critical": "red",
    "failed": "red",
}


class Column(NamedTuple):
    """One column of a table; ``wide`` ones are shown with ``-o wide`` only."""

    title: str
    text: Callable[[Any], str]
    wide: bool = False


class Table(NamedTuple):
    """A list to show. ``kind`` is the singular, ``name`` gives ``rc/hello``; ``broken``: one line each."""

    kind: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: Callable[[Any], str]
    plain: Callable[[Any], dict[str, Any]]
    broken: Sequence[str] = ()
    empty: str = ""


def plain(value: Any) -> Any:
    """Plain data with every field, also those at their defaults, so that scripts can rely on them."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def clean(text: str) -> str:
    """One line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def document(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """A versioned document."""
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def emit(invocation: Invocation, data: dict[str, Any], *, compact: bool = False) -> None:
    """Print a document to stdout as JSON or YAML."""
    if invocation.settings.output == "yaml":
        click.echo(as_yaml(data), nl=False)
        return
    text = msgspec.json.encode(data)
    click.echo((text if compact else msgspec.json.format(text)).decode())


def as_yaml(data: dict[str, Any]) -> str:
    """YAML in the order given; text of several lines stays readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """The safe dumper, with block style for text of several lines."""

    def text(dumper: Dumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def on_terminal(invocation: Invocation) -> bool:
    """Whether stdout is a terminal that may be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not invocation.settings.quiet


def colors(invocation: Invocation) -> bool:
    """Whether colours are wanted (https://no-color.org)."""
    return on_terminal(invocation) and not invocation.settings.no_color and not os.environ.get("NO_COLOR")


async def show(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> None:
    """Show a list once, or with ``--watch`` again whenever it changed."""
    if not invocation.settings.watch:
        render(invocation, await read())
        return
    if on_terminal(invocation) and invocation.settings.output in {"table", "wide"}:
        await live(invocation, lambda: _renderable(invocation, read))
        return
    last = None
    while True:
        table = await read()
        now = [table.plain(row) for row in table.rows]
        if now != last:
            render(invocation, table, compact=True)
            sys.stdout.flush()
            last = now
        await invocation.call.clock.sleep(_PAUSE)


async def live(invocation: Invocation, draw: Callable[[], Awaitable[Any]]) -> None:
    """Draw on the terminal again every second until ^C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not colors(invocation))
    with Live(await draw(), console=console, auto_refresh=False, vertical_overflow="crop") as screen:
        while True:
            await invocation.call.clock.sleep(_PAUSE)
            screen.update(await draw(), refresh=True)


async def _renderable(invocation: Invocation, read: Callable[[], Awaitable[Table]]) -> Any:
    return rich_table(invocation, await read())


def render(invocation: Invocation, table: Table, *, compact: bool = False) -> None:
    """Show a list once in the form that was asked for; broken records go to stderr."""
    output = invocation.settings.output
    if output in {"json", "yaml"}:
        content = {"items": [table.plain(row) for row in table.rows], "broken": list(table.broken)}
        emit(invocation, document(f"{table.kind}List", content), compact=compact)
    elif output == "name":
        for row in table.rows:
            click.echo(table.name(row))
    elif not table.rows:
        invocation.say(table.empty or "nothing found")
    elif colors(invocation):
        from rich.console import Console

        Console().print(rich_table(invocation, table))
    else:
        for line in text_table(invocation, table):
            click.echo(line)
    for line in table.broken:
        click.echo(f"farmctl: broken record left out: {clean(line)}", err=True)


def columns_of(invocation: Invocation, table: Table) -> list[Column]:
    """The columns that are asked for."""
    wide = invocation.settings.output == "wide"
    return [column for column in table.columns if wide or not column.wide]


def text_table(invocation: Invocation, table: Table) -> list[str]:
    """The lines of an aligned table."""
    columns = columns_of(invocation, table)
    cells = [[column.title for column in columns]]
    cells += [[clean(column.text(row)) for column in columns] for row in table.rows]
    widths = [max(len(line[position]) for line in cells) for position in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def rich_table(invocation: Invocation, table: Table) -> Any:
    """The same table for a terminal, with states in colour."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    columns = columns_of(invocation, table)
    for column in columns:
        drawn.add_column(column.title, overflow="fold")
    for row in table.rows:
        texts = [clean(column.text(row)) for column in columns]
        drawn.add_row(
            *[Text(text, style=_STYLES.get(text.split(",")[0].split(" ")[0], "")) for text in texts]
        )
    return drawn


def ago(now: float, then: float) -> str:
    """How long ago, in one unit: ``5s``, ``3m``, ``2h``, ``4d``; empty for never."""
    if then <= 0:
        return ""
    seconds = max(0, int(now - then))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """``replicas 3 -> 5`` for each field that changed."""
    return [
        f"{name} {_scalar(before[name])} -> {_scalar(value)}"
        if name in before
        else f"{name} {_scalar(value)}"
        for name, value in after.items()
    ]


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else clean(str(value)) or '""'


def pairs(values: dict[str, Any]) -> str:
    """``a=1,b=2``, sorted."""
    return ",".join(f"{key}={values[key]}" for key in sorted(values))
