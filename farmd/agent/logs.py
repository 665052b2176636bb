"""Reading the log files that shims write: the last lines, and what comes after them.

A shim turns ``current.log`` into ``current.log.1`` when it is full; a reader that follows notices by
the file's inode. Reading is bounded: the last lines come from the end of the files, never from all of
them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from farmd.agent.shim import LOG
from store.ports import Clock

CHUNK = 64 * 1024
MAX_LINES = 10_000
MAX_TAIL_BYTES = 4 * 1024 * 1024
LOOK_SECONDS = 0.2


def files(directory: Path) -> list[Path]:
    """The log files of one instance, newest first."""
    found = []
    for path in directory.glob(f"{LOG}*"):
        suffix = path.name[len(LOG) + 1 :]
        if path.name == LOG or suffix.isdigit():
            found.append((int(suffix or 0), path))
    return [path for _, path in sorted(found)]


def tail(directory: Path, lines: int) -> bytes:
    """The last ``lines`` lines, over rotated files; at most 4 MiB."""
    parts: list[bytes] = []
    missing, room = lines, MAX_TAIL_BYTES
    for path in files(directory):
        if missing <= 0 or room <= 0:
            break
        try:
            data = _end_of(path, missing, room)
        except FileNotFoundError:
            # Rotated away between listing and reading.
            continue
        parts.append(data)
        missing -= data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)
        room -= len(data)
    return b"".join(reversed(parts))


def _end_of(path: Path, lines: int, room: int) -> bytes:
    """The last lines of one file."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and len(data) < room and data.rstrip(b"\n").count(b"\n") < lines:
            step = min(CHUNK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    return b"".join(data.splitlines(keepends=True)[-lines:])


async def follow(directory: Path, clock: Clock) -> AsyncIterator[bytes]:
    """What is written from now on, across rotations; never ends by itself."""
    file = _open(directory)
    if file is not None:
        file.seek(0, os.SEEK_END)
    try:
        while True:
            if file is None:
                file = _open(directory)
            elif data := file.read(CHUNK):
                yield data
                continue
            elif _replaced(file.fileno(), directory):
                # What was written between the last read and the rotation is still in the old file.
                while data := file.read(CHUNK):
                    yield data
                file.close()
                file = _open(directory)
                continue
            elif file.tell() > os.fstat(file.fileno()).st_size:
                file.seek(0)
                continue
            await clock.sleep(LOOK_SECONDS)
    finally:
        if file is not None:
            file.close()


def _open(directory: Path):  # type: ignore[no-untyped-def]
    try:
        return (directory / LOG).open("rb")
    except FileNotFoundError:
        return None


def _replaced(fd: int, directory: Path) -> bool:
    try:
        current = (directory / LOG).stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) != (current.st_dev, current.st_ino)
