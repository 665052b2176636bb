"""Tables: aligned columns for people, with colours on a terminal.

A name or an id is never split: where a table is wider than the terminal, its last column is folded; where the
others leave no room for it, it goes below its line, and a very narrow terminal wraps whole lines. Where lines
are cropped instead, other columns are left out before a state is, and at last names are cut. Control
characters are removed from text of the store, because anybody may have written it.
"""

from __future__ import annotations

import textwrap

import click

from farmd.tables.model import STATES, Column, Table, clean, colour_of

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


def lines(
    table: Table, *, wide: bool = False, width: int = 0, cropped: int = 0, colour: bool = False
) -> list[str]:
    """The lines of a table. ``width``: of the terminal, 0 for none; ``cropped``: where the caller crops
    lines, 0 for nowhere; ``colour``: with escape sequences.
    """
    columns = [column for column in table.columns if wide or not column.wide]
    cells = [[column.title for column in columns]]
    cells += [[clean(column.text(row)) for column in columns] for row in table.rows]
    if cropped:
        columns, cells = _with_states(columns, cells, cropped)
    widths = _widths(cells)
    room = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1) if width else 0
    shown = []
    for number, cell in enumerate(cells):
        *first, last = cell
        head = _GAP.join(
            _styled(text.ljust(size), column.title, colour=colour, title=number == 0)
            for text, size, column in zip(first, widths, columns, strict=False)
        )
        beside, rest = _folded(last.strip(), room, width)
        tail = _styled(beside, columns[-1].title, colour=colour, title=number == 0)
        shown += [(f"{head}{_GAP}{tail}" if first else tail).rstrip(), *rest]
    return shown


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


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
