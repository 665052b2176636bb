"""Reads the log files that shims write: the last lines, and the output after them.

A shim renames ``current.log`` to ``current.log.1`` when it is full; a following reader notices that by
the file's inode. Reading is bounded: the last lines are read from the end of the files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import structlog

from farmd.agent.errors import StateUnsaved
from farmd.agent.log_files import LOG, MARKS, trouble
from farmd.agent.state import StateDirectory
from store.keys import valid_instance
from store.ports import Clock
from store.times import rfc3339

CHUNK = 64 * 1024
MAX_LINES = 10_000
MAX_TAIL_BYTES = 4 * 1024 * 1024
LOOK_SECONDS = 0.2


def tail(directory: Path, lines: int) -> bytes:
    """The last ``lines`` lines, over rotated files; at most 4 MiB."""
    current = _open(directory / LOG)
    if current is None:
        return b""
    with current:
        return _tail(directory, lines, current)


async def follow(
    directory: Path, lines: int, clock: Clock, first: Callable[[int], Awaitable[bytes]] | None = None
) -> AsyncGenerator[bytes, None]:
    """The last lines, then all further output, across rotations, until the pod is gone.

    ``first`` gives other old lines, up to an offset in the current file. An empty piece means that there is
    no new output at present.
    """
    file = _open(directory / LOG)
    if file is not None:
        if first is None:
            yield await asyncio.to_thread(_tail, directory, lines, file)
        else:
            yield await first(file.seek(0, os.SEEK_END))
    try:
        while directory.exists():  # noqa: ASYNC240 - a look at a local directory
            if file is None:
                file = _open(directory / LOG)
                if file is not None:
                    continue
            elif data := file.read(CHUNK):
                yield data
                await clock.sleep(0)  # also where the reader takes all at once, others have their turn
                continue
            elif _replaced(file, directory / LOG):
                # The old file still has the output between the last read and the rotation.
                while data := file.read(CHUNK):
                    yield data
                file = _newer(directory, file)
                continue
            elif file.tell() > os.fstat(file.fileno()).st_size:
                file.seek(0)
                continue
            yield b""
            await clock.sleep(LOOK_SECONDS)
        while file is not None and (data := file.read(CHUNK)):
            yield data  # the last words of a pod that was removed between two looks
    finally:
        if file is not None:
            file.close()


def _tail(directory: Path, lines: int, current: BinaryIO) -> bytes:
    """The last lines up to the end of ``current``, whose position is then at its end."""
    data = _end_of(current, lines, MAX_TAIL_BYTES)
    for path in _older(directory):
        if _count(data) >= lines or len(data) >= MAX_TAIL_BYTES:
            break
        older = _open(path)
        if older is None:
            # Rotated away between listing and reading.
            continue
        with older:
            if _inode(older) != _inode(current):
                data = _end_of(older, lines - _count(data), MAX_TAIL_BYTES - len(data)) + data
    return data


def files(directory: Path) -> list[Path]:
    """The current file and the rotated ones, newest first."""
    return [directory / LOG, *_older(directory)]


def _older(directory: Path) -> list[Path]:
    """Rotated files, newest first."""
    numbered = {}
    for path in directory.glob(f"{LOG}.*"):
        suffix = path.name[len(LOG) + 1 :]
        if suffix.isdecimal():
            numbered[int(suffix)] = path
    return [numbered[number] for number in sorted(numbered)]


def _end_of(file: BinaryIO, lines: int, room: int) -> bytes:
    """The last lines of one file, whose position is then at its end."""
    end = position = file.seek(0, os.SEEK_END)
    chunks: deque[bytes] = deque()
    ends = 0
    while lines > 0 and position > 0 and end - position < room and ends <= lines:
        step = min(CHUNK, position)
        position -= step
        file.seek(position)
        chunks.appendleft(file.read(step))
        ends += chunks[0].count(b"\n")
    file.seek(end)
    data = b"".join(chunks)
    return data[min((at for at, _ in last_lines(data, len(data), 0, lines)), default=len(data)) :]


def last_lines(data: bytes, end: int, begin: int, count: int) -> Iterator[tuple[int, bytes]]:
    """The last lines between two offsets with their own offsets, the last one first."""
    while end > begin and count > 0:
        at = data.rfind(b"\n", begin, end - 1)
        start = begin if at < 0 else at + 1
        yield start, data[start:end]
        end, count = start, count - 1


def _count(data: bytes) -> int:
    """Lines, an unfinished last one included."""
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def _open(path: Path) -> BinaryIO | None:
    try:
        # Unbuffered, because a buffered reader would keep an old end of the file while the shim appends.
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        return None


def _newer(directory: Path, file: BinaryIO) -> BinaryIO | None:
    """The file after this one, which is closed; after the oldest that is left, if it was rotated away."""
    own, found = _inode(file), None
    for path in files(directory):
        each = _open(path)
        if each is None or _inode(each) == own:
            if each is not None:
                each.close()
                break
            continue
        if found is not None:
            found.close()
        found = each
    file.close()
    return found


def _inode(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _replaced(file: BinaryIO, path: Path) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    return _inode(file) != (current.st_dev, current.st_ino)


# The output of an instance line by line, with the time and the start that it belongs to.
#
# Shims mark, at most once a second, how far their log was at which time, and where each start begins.
# Output of shims of an earlier version has no marks: its time and its start are unknown. Reading is bounded
# as in ``logs``.

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
        lines = last_of(part, choice.last - len(lines), start) + lines
    return [line for line in lines if line.at >= choice.since]


def stamped(at: float, text: bytes) -> bytes:
    """A line that begins with its time."""
    return (rfc3339(at) if at else "-").encode() + b" " + text


def stamped_all(at: float, text: bytes, *, begins: bool) -> bytes:
    """Output of one time, each line with that time; ``begins``: its first byte begins a line."""
    stamp, lines = stamped(at, b""), text.removesuffix(b"\n")
    return (stamp if begins else b"") + lines.replace(b"\n", b"\n" + stamp) + text[len(lines) :]


class Part(NamedTuple):
    """The end of one file: ``data`` from the offset ``base`` on, and its marks."""

    data: bytes
    base: int
    marks: list[Mark]


def _parts(directory: Path, until: int | None) -> Iterator[Part]:
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
        yield Part(data, base, parsed_marks(text))
        room -= len(data)
        if room <= 0:
            break


def last_of(part: Part, count: int, start: str | None) -> list[LogLine]:
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


def parsed_marks(text: bytes) -> list[Mark]:
    """Marks; an incomplete one (after a crash, or where reading began) is left out."""
    found = []
    for line in text.decode("ascii", "replace").splitlines():
        try:
            offset, at, start = line.split(" ")
            found.append(Mark(int(offset), float(at), start))
        except ValueError:
            continue
    return found


# The last output of removed pods, kept for an hour: many a failed pod is removed before people read why.
#
# It is bounded in number and size. A disk that is full or cannot be read keeps none; no removal waits for
# it.

log = structlog.get_logger()

KEPT_SECONDS = 3600.0
KEPT_BYTES = 256 * 1024
KEPT_PODS = 64


class Gone:
    """The folder ``gone`` of an agent's state; each pod has one in it, whose time is that of its removal."""

    def __init__(self, state: StateDirectory, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._folder = state.root / "gone"

    def keep(self, instance: str) -> None:
        """Keep the end of an instance's log, in place of what an earlier pod of that name left."""
        folder, now = self._folder / instance, self._clock.now()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if lines := _last_kept(self._state.logs(instance)):
                self._state.require_room()
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _write(folder, lines)
                os.utime(folder, (now, now))
        except (OSError, StateUnsaved) as error:
            shutil.rmtree(folder, ignore_errors=True)
            why = trouble(error) if isinstance(error, OSError) else error.message
            log.info("gone.not_kept", instance=instance, reason=why)
        self.sweep()

    def logs(self, instance: str) -> tuple[Path, float] | None:
        """The log of a removed pod and the time of its removal; None if none is kept.

        Raises:
            InputInvalid: no instance can have this name.
            DiskSilent: the disk does not answer.
        """
        folder = self._folder / valid_instance(instance)

        def kept() -> list[float]:
            self.sweep()
            return [at for at, path in self._kept() if path == folder]

        found = self._state.disk.call(kept)
        return (folder, found[0]) if found else None

    def sweep(self) -> None:
        """Remove what is too old or too much."""
        now = self._clock.now()
        for place, (at, folder) in enumerate(sorted(self._kept(), reverse=True)):
            # A time in the future comes from a clock that was wrong.
            if place >= KEPT_PODS or abs(now - at) > KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def _kept(self) -> list[tuple[float, Path]]:
        try:
            return [(folder.stat().st_mtime, folder) for folder in self._folder.iterdir()]
        except OSError:
            return []


def _last_kept(logs: Path) -> list[LogLine]:
    """The last lines of a log, as many as fit."""
    found = chosen(logs, Choice(MAX_LINES)) or []
    room, first = KEPT_BYTES, len(found)
    while first and (room := room - len(found[first - 1].text)) >= 0:
        first -= 1
    if first == len(found) > 0:  # one line alone is too long
        return [found[-1]._replace(text=found[-1].text[-KEPT_BYTES:])]
    return found[first:]


def _write(folder: Path, lines: Sequence[LogLine]) -> None:
    """Write lines as a shim does: the output, and where another time or another start begins."""
    folder.mkdir(mode=0o700)
    marks, offset, known = list[str](), 0, (-1.0, "")
    for line in lines:
        if (line.at, line.start) != known:
            known = line.at, line.start
            marks.append(f"{offset} {line.at:.3f} {line.start}\n")
        offset += len(line.text)
    (folder / MARKS).write_text("".join(marks), encoding="ascii")
    (folder / LOG).write_bytes(b"".join(line.text for line in lines))
