"""The output of one pod from the place up to which it was sent, across rotated files.

A place is a number of bytes since the pod's folder was made. The first line of a file's marks says where the
file begins (``log_files.Log``), so a reader that comes late knows how much was rotated away.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from farmd.agent import logs
from farmd.agent.files import write_atomically
from farmd.agent.log_files import LOG, MARKS
from farmd.agent.logs import LogLine, Part
from store.manifests import MAIN

CHUNK = 256 * 1024
MOST_LINES = 4096
"""At once: each may become a message that is many times as long as an empty line."""
HALF_LINE_SECONDS = 3.0
"""A line without an end is sent after so long, as a prompt that waits for input."""
MARKS_TAIL = 64 * 1024
TRIES = 3


class Origin(NamedTuple):
    """Whose output it is; ``owner`` is the manifest's ``id``: an intent has no name of an owner."""

    node: str
    instance: str
    owner: str
    owner_id: str
    process: str = MAIN


class SentUpTo(msgspec.Struct):
    """What is saved beside the pod's records, for the next agent."""

    to: str
    at: int
    lost: int = 0


class Opened(NamedTuple):
    """A log file, where it begins and ends, and the path of its marks."""

    file: BinaryIO
    begin: int
    end: int
    marks: bytes


@dataclass(eq=False)
class Stream:
    """One pod's output on its way to one destination; for one thread, but for ``end``.

    ``lost``: the bytes that were rotated away before they were sent; ``at`` is below 0 before the first read.
    """

    origin: Origin
    folder: Path
    logs: Path
    to: str
    at: int = -1
    sent: int = 0
    lost: int = 0
    behind: int = 0
    ended: float | None = None
    stays: bool = False
    counted: tuple[int, int] = (0, 0)
    _saved: int = -1
    _seen: tuple[int, int, int] = (0, 0, -1)
    _half: tuple[int, float] = (-1, 0.0)
    _unnamed: int = 0
    _held: list[Opened] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.logs / LOG).exists():
            self.at = 0  # else nobody asked for what was rotated away before
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(self._path.read_bytes(), type=SentUpTo)
            if found.to == self.to:
                self.at = self._saved = found.at
                self.lost = found.lost
                self.counted = (0, found.lost)

    @property
    def _path(self) -> Path:
        name = self.to if self.origin.process == MAIN else f"{self.to} {self.origin.process}"
        return self.folder / f"sent-{sha256(name.encode()).hexdigest()[:12]}.json"

    def save(self) -> None:
        """Save the place; without that the next agent sends again what came after the saved one."""
        if self.at != self._saved:
            with contextlib.suppress(OSError):
                place = SentUpTo(self.to, self.at, self.lost)
                write_atomically(self._path, msgspec.json.encode(place), sync=False)
                self._saved = self.at

    def end(self, now: float, *, stays: bool = False) -> None:
        """Hold open what is not sent yet, because nothing more is; unless it ``stays``, the pod's folder is
        about to be removed.
        """
        self.stays = stays
        with contextlib.suppress(OSError):
            self._held = list(self._open())
        self.behind = max(0, self._held[0].end - max(self.at, 0)) if self._held else 0
        self.ended = now

    def close(self) -> None:
        """Let go of what is held open; what was not sent is lost."""
        if self._held:
            self.lost += max(0, self._held[0].end - self.at)
        for each in self._held:
            each.file.close()
        self._held = []

    def read(self, longest: int, now: float) -> list[LogLine]:
        """Lines from the place on, and none longer than ``longest``; empty: there is nothing to send now.

        Raises:
            OSError: the disk fails.
        """
        if not self._held and self._unchanged():
            return []
        held = self._held
        found = held or list(self._open())
        try:
            return self._lines(found, longest, now)
        finally:
            for each in found if not held else []:
                each.file.close()

    def advance(self, lines: Sequence[LogLine]) -> None:
        """Note that these lines, which come next, were sent."""
        size = sum(len(line.text) for line in lines)
        self.at += size
        self.sent += size
        self.behind = max(0, self.behind - size)

    def _unchanged(self) -> bool:
        """Whether all was sent, and nothing was written since."""
        try:
            found = (self.logs / LOG).stat()
        except FileNotFoundError:
            return True
        known, self._seen = self._seen, (found.st_ino, found.st_size, self.at)
        return known == self._seen and self.behind == 0 and self._half[0] < 0

    def _lines(self, found: list[Opened], longest: int, now: float) -> list[LogLine]:
        if not found:
            self._seen = (0, 0, -1)
            return []
        newest, oldest = found[0], found[-1]
        if self.at > newest.end:  # the folder was made anew, or an earlier shim tells no beginnings
            self.at = newest.begin
        if self.at < oldest.begin:
            self.lost += oldest.begin - self.at if self.at >= 0 else 0
            self.at = oldest.begin
        self.behind = newest.end - self.at
        here = next(each for each in reversed(found) if self.at < each.end or each is newest)
        here.file.seek(self.at - here.begin)
        data = here.file.read(min(CHUNK, here.end - self.at))
        whole = here is not newest or self.ended is not None or len(data) == CHUNK
        data = self._without_half(data, now, whole=whole)
        if not data:
            return []
        marks = logs.parsed_marks(here.marks)
        lines = logs.last_of(Part(data, self.at - here.begin, marks), len(data), None)
        return list(islice(_cut(lines, longest), MOST_LINES))

    def _without_half(self, data: bytes, now: float, *, whole: bool) -> bytes:
        """The data without the line that is being written; with it if nothing follows for a while."""
        end = len(data) if whole and b"\n" not in data else data.rfind(b"\n") + 1
        if end == len(data) or (whole and len(data) < CHUNK):
            self._half = (-1, 0.0)
            return data
        size, since = self._half
        if size != self.at + len(data):
            self._half = (self.at + len(data), now)
        elif now - since >= HALF_LINE_SECONDS:
            self._half = (-1, 0.0)
            return data
        return data[:end]

    def _open(self) -> Iterator[Opened]:
        """The files from the newest to the one of the place, or to the oldest."""
        for _ in range(TRIES):
            found: list[Opened] = []
            try:
                if self._walk(found):
                    yield from found
                    return
            except FileNotFoundError:
                pass  # it was rotated away between listing and reading
            for each in found:
                each.file.close()
        self._unnamed += 1

    def _walk(self, found: list[Opened]) -> bool:
        """Whether the files were found as they lie now, and not in the middle of a rotation."""
        known: set[int] = set()
        for path in logs.files(self.logs):
            file = path.open("rb", buffering=0)
            state = os.fstat(file.fileno())
            if state.st_ino in known:
                file.close()
                continue
            known.add(state.st_ino)
            begin, marks = self._begin(path)
            if begin is None:
                # An earlier shim tells no beginnings; in the middle of a rotation there is none for a moment.
                begin = found[-1].begin - state.st_size if found else 0
                if not found and self._unnamed < TRIES:
                    file.close()
                    return False
            elif not found:
                self._unnamed = 0
            found.append(Opened(file, begin, begin + state.st_size, marks))
            if path.stat().st_ino != state.st_ino:
                return False
            if begin <= self.at or begin <= 0:
                break
        return True

    def _begin(self, path: Path) -> tuple[int | None, bytes]:
        """Where a file begins, and its marks from the place on, or the last ones before it."""
        try:
            with path.with_name(path.name.replace(LOG, MARKS, 1)).open("rb") as file:
                head = file.readline(32)
                begin = int(head[1:]) if head.startswith(b"@") else None
                size = file.seek(0, os.SEEK_END)
                marks = _tail(file, size, MARKS_TAIL)
                known = logs.parsed_marks(marks)
                if size > MARKS_TAIL and not (known and known[0].offset + (begin or 0) <= self.at):
                    marks = _tail(file, size, logs.MAX_MARK_BYTES)
                return begin, marks
        except (FileNotFoundError, ValueError):
            return None, b""


def _cut(lines: Sequence[LogLine], longest: int) -> Iterator[LogLine]:
    for line in lines:
        text, start = line.text, 0
        while len(text) - start > longest + text.endswith(b"\n"):
            yield line._replace(text=text[start : start + longest])
            start += longest
        yield line._replace(text=text[start:])


def _tail(file: BinaryIO, size: int, room: int) -> bytes:
    """The last whole lines of a file."""
    file.seek(max(0, size - room))
    found = file.read(room)
    return found if size <= room else found.partition(b"\n")[2]
