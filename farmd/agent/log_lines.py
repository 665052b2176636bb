"""The output of an instance line by line, with the time and the start that it belongs to.

Shims mark, at most once a second, how far their log was at which time, and where each start begins. Output
of shims of an earlier version has no marks: its time and its start are unknown. Reading is bounded as in
``logs``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from farmd.agent.logs import MAX_TAIL_BYTES, files
from farmd.agent.shim import LOG, MARKS
from store.times import rfc3339

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


class Mark(NamedTuple):
    """From ``offset`` on, output was written at ``at`` (seconds since the epoch) or later, in ``start``."""

    offset: int
    at: float
    start: str


class Line(NamedTuple):
    """One line with its end, if it has one; ``at`` is 0 and ``start`` empty where nobody knows."""

    at: float
    start: str
    text: bytes


class Choice(NamedTuple):
    """Which lines are wanted: the last so many of those not older than ``since`` (0: of all).

    ``previous``: only those of the start before the last one.
    """

    last: int
    since: float = 0.0
    previous: bool = False


def chosen(directory: Path, choice: Choice, until: int | None = None) -> list[Line] | None:
    """The lines that are wanted, up to an offset in the current file; None: there is no previous start."""
    lines: list[Line] = []
    starts: dict[str, None] = {}
    for found, marks in reversed(_parts(directory, until)):
        lines += found
        starts |= dict.fromkeys(mark.start for mark in marks)
    if choice.previous:
        if len(starts) < 2:
            return None
        before = list(starts)[-2]
        lines = [line for line in lines if line.start == before]
    lines = [line for line in lines if line.at >= choice.since]
    return lines[-choice.last :] if choice.last else []


def stamped(at: float, text: bytes) -> bytes:
    """A line that begins with its time."""
    return (rfc3339(at) if at else "-").encode() + b" " + text


def _parts(directory: Path, until: int | None) -> list[tuple[list[Line], list[Mark]]]:
    """The lines and the marks of each file, newest first."""
    parts, room = [], MAX_TAIL_BYTES
    for path in files(directory):
        try:
            with path.open("rb") as file:
                end = file.seek(0, 2) if until is None or path.name != LOG else until
                base = max(0, end - room)
                file.seek(base)
                data = file.read(end - base)
        except FileNotFoundError:
            continue  # rotated away between listing and reading
        marks = _marks(path)
        if base and (cut := data.find(b"\n") + 1):
            data, base = data[cut:], base + cut
        parts.append((_lines(data, base, marks), marks))
        room -= len(data)
        if room <= 0:
            break
    return parts


def _lines(data: bytes, base: int, marks: Sequence[Mark]) -> list[Line]:
    offsets = [mark.offset for mark in marks]
    # A start begins a line, even where the one before it left one unfinished.
    begins = [after.offset for before, after in pairwise(marks) if after.start != before.start]
    bounds = [base, *(offset for offset in begins if base < offset < base + len(data)), base + len(data)]
    found = []
    for first, last in pairwise(bounds):
        position = first
        for text in _LINE.findall(data, first - base, last - base):
            place = bisect_right(offsets, position) - 1
            known = marks[place] if place >= 0 else Mark(0, 0.0, "")
            found.append(Line(known.at, known.start, text))
            position += len(text)
    return found


def _marks(log: Path) -> list[Mark]:
    """The marks of one file; an incomplete one (after a crash) is left out."""
    try:
        text = log.with_name(log.name.replace(LOG, MARKS, 1)).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        try:
            offset, at, start = line.split(" ")
            found.append(Mark(int(offset), float(at), start))
        except ValueError:
            continue
    return found
