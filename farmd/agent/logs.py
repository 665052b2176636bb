"""Reads the log files that shims write: the last lines, and the output after them.

A shim renames ``current.log`` to ``current.log.1`` when it is full; a following reader notices that by
the file's inode. Reading is bounded: the last lines are read from the end of the files.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from farmd.agent.shim import LOG
from store.ports import Clock

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
                file.close()
                file = _open(directory / LOG)
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


def _inode(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _replaced(file: BinaryIO, path: Path) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    return _inode(file) != (current.st_dev, current.st_ino)
