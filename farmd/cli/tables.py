"""Tables: aligned columns for people, with colours on a terminal.

A name or an id is never split: where a table is wider than the terminal, its last column is folded; where the
others leave no room for it, it goes below its line, and a very narrow terminal wraps whole lines. Control
characters are removed from text of the store, because anybody may have written it.
"""

from __future__ import annotations

import textwrap

import click

from farmd.tables.model import Table, clean, colour_of

_GAP = "  "
_LEAST_FOLD = 24
_BELOW = "    "


def drawable(text: str, encoding: str | None) -> str:
    """The text with bars that the encoding has."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(str.maketrans("█░", "#."))
    return text


def lines(table: Table, *, wide: bool = False, width: int = 0, colour: bool = False) -> list[str]:
    """The lines of a table. ``width``: of the terminal, 0 for none; ``colour``: with escape sequences."""
    columns = [column for column in table.columns if wide or not column.wide]
    cells = [[column.title for column in columns]]
    cells += [[clean(column.text(row)) for column in columns] for row in table.rows]
    widths = [max(len(line[position]) for line in cells) for position in range(len(columns))]
    room = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1) if width else 0
    shown = []
    for number, cell in enumerate(cells):
        *first, last = cell
        head = _GAP.join(
            _styled(text.ljust(size), column.title, colour=colour, title=number == 0)
            for text, size, column in zip(first, widths, columns, strict=False)
        )
        beside, rest = _folded(last, room, width)
        tail = _styled(beside, columns[-1].title, colour=colour, title=number == 0)
        shown += [(f"{head}{_GAP}{tail}" if first else tail).rstrip(), *rest]
    return shown


def _folded(last: str, room: int, width: int) -> tuple[str, list[str]]:
    """The part of the last column in its own line, and the lines below."""
    if len(last) <= room:
        return last, []
    if room >= _LEAST_FOLD:
        beside, *rest = textwrap.wrap(last, room)
        return beside, textwrap.indent("\n".join(rest), " " * (width - room)).splitlines()
    if width >= 2 * _LEAST_FOLD:
        return "", textwrap.wrap(last, width, initial_indent=_BELOW, subsequent_indent=_BELOW)
    return last, []


def _styled(text: str, column: str, *, colour: bool, title: bool) -> str:
    if not colour:
        return text
    if title:
        return click.style(text, bold=True)
    found = colour_of(column, text)
    return click.style(text, fg=found) if found else text
