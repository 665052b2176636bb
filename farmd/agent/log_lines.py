"""The output of an instance line by line, with the time and the start that it belongs to.

Shims mark, at most once a second, how far their log was at which time, and where each start begins. Output
of shims of an earlier version has no marks: its time and its start are unknown. Reading is bounded as in
``logs``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from farmd.agent.logs import MAX_TAIL_BYTES, files, last_lines
from farmd.agent.shim import LOG, MARKS
from store.times import rfc3339

MAX_MARK_BYTES = 1024 * 1024


class Mark(NamedTuple):
    """From ``offset`` on, output was written at ``at`` (seconds since the epoch) or later, in ``start``."""

    offset: int
    at: float
    start: str


class LogLine(NamedTuple):
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


def chosen(directory: Path, choice: Choice, until: int | None = None) -> list[LogLine] | None:
    """The lines that are wanted, up to an offset in the current file; None: there is no previous start.

    However many lines a file has, no more of them are made than are wanted.
    """
    parts = list(_parts(directory, until))
    start = None
    if choice.previous:
        starts = list({mark.start: None for part in reversed(parts) for mark in part.marks})
        if len(starts) < 2:
            return None
        start = starts[-2]
    lines: list[LogLine] = []
    for part in parts:
        lines = _last(part, choice.last - len(lines), start) + lines
    return [line for line in lines if line.at >= choice.since]


def stamped(at: float, text: bytes) -> bytes:
    """A line that begins with its time."""
    return (rfc3339(at) if at else "-").encode() + b" " + text


def stamped_all(at: float, text: bytes, *, begins: bool) -> bytes:
    """Output of one time, each line with that time; ``begins``: its first byte begins a line."""
    stamp, lines = stamped(at, b""), text.removesuffix(b"\n")
    return (stamp if begins else b"") + lines.replace(b"\n", b"\n" + stamp) + text[len(lines) :]


class _Part(NamedTuple):
    """The end of one file: ``data`` from the offset ``base`` on, and its marks."""

    data: bytes
    base: int
    marks: list[Mark]


def _parts(directory: Path, until: int | None) -> Iterator[_Part]:
    """The end of the output, file by file, newest first."""
    room, room_for_marks = MAX_TAIL_BYTES, MAX_MARK_BYTES
    for path in files(directory):
        try:
            with path.open("rb") as file:
                end = file.seek(0, 2) if until is None or path.name != LOG else until
                base = max(0, end - room)
                file.seek(base)
                data = file.read(end - base)
        except FileNotFoundError:
            continue  # rotated away between listing and reading
        text = _marks(path, room_for_marks)
        room_for_marks -= len(text)
        if base and (cut := data.find(b"\n") + 1):
            data, base = data[cut:], base + cut
        yield _Part(data, base, _parsed(text))
        room -= len(data)
        if room <= 0:
            break


def _last(part: _Part, count: int, start: str | None) -> list[LogLine]:
    """The last lines of a file, or of one start in it."""
    data, base, marks = part
    offsets = [mark.offset for mark in marks]
    # A start begins a line, even where the one before it left one unfinished.
    begins = [after.offset for before, after in pairwise(marks) if after.start != before.start]
    bounds = [base, *(offset for offset in begins if base < offset < base + len(data)), base + len(data)]
    found: list[LogLine] = []
    for high, low in pairwise(reversed(bounds)):
        if start is not None and _mark_at(marks, offsets, low).start != start:
            continue
        for position, text in last_lines(data, high - base, low - base, count - len(found)):
            known = _mark_at(marks, offsets, base + position)
            found.append(LogLine(known.at, known.start, text))
    return found[::-1]


def _mark_at(marks: Sequence[Mark], offsets: Sequence[int], position: int) -> Mark:
    place = bisect_right(offsets, position) - 1
    return marks[place] if place >= 0 else Mark(0, 0.0, "")


def _marks(log: Path, room: int) -> bytes:
    """The end of the marks of one file."""
    try:
        with log.with_name(log.name.replace(LOG, MARKS, 1)).open("rb") as file:
            base = max(0, file.seek(0, 2) - room)
            file.seek(base)
            return file.read(room)
    except FileNotFoundError:
        return b""


def _parsed(text: bytes) -> list[Mark]:
    """Marks; an incomplete one (after a crash, or where reading began) is left out."""
    found = []
    for line in text.decode("ascii", "replace").splitlines():
        try:
            offset, at, start = line.split(" ")
            found.append(Mark(int(offset), float(at), start))
        except ValueError:
            continue
    return found
