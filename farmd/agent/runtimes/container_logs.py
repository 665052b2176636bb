"""Copies the output of containers into the same log files that processes have."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.files import write_atomically
from farmd.agent.log_files import Log
from farmd.agent.runtimes.engine import Engine
from store.ports import Clock

T = TypeVar("T")

log = structlog.get_logger()

RETRY_SECONDS = 0.2
DRAIN_SECONDS = 5.0
SAVE_SECONDS = 1.0
POSITION = "container.position"


class Position(msgspec.Struct):
    """How far the output of a start was copied: ``lines`` lines of the time ``at``, and all before."""

    start: str
    at: str = ""
    lines: int = 0


class ContainerLogs:
    """The copies under way, by container."""

    def __init__(self, engine: Engine, clock: Clock, alive: Callable[[str], bool]) -> None:
        self._engine = engine
        self._clock = clock
        self._alive = alive
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # One thread for all: what is written, saved and closed keeps its order, and only it waits for a disk.
        self._disk = ThreadPoolExecutor(1, "container-logs")

    def follow(self, container: str, start: str, folder: Path, sizes: tuple[int, int]) -> None:
        """Copy all output of a container, the output to come included, unless that is under way."""
        if container not in self._tasks:
            copying = self._copy(container, start, folder, sizes)
            self._tasks[container] = asyncio.create_task(copying)

    def forget(self, known: set[str]) -> None:
        """Forget the copies of containers that are gone."""
        for container in self._tasks.keys() - known:
            self._tasks.pop(container).cancel()

    async def drained(self, container: str) -> None:
        """Wait until all output of an ended container is copied, for a while at most."""
        task = self._tasks.get(container)
        if task is not None:
            await asyncio.wait([task], timeout=DRAIN_SECONDS)

    async def close(self) -> None:
        """Stop copying; the next agent goes on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.wait([self._on_disk(bool)], timeout=DRAIN_SECONDS)
        self._disk.shutdown(wait=False)

    async def _copy(self, container: str, start: str, folder: Path, sizes: tuple[int, int]) -> None:
        place = folder.parent / POSITION
        position, output = await self._on_disk(_begin, place, folder, start, sizes)
        try:
            await self._copy_to_its_end(container, position, output, place)
        finally:
            await asyncio.wait([self._on_disk(output.close)], timeout=DRAIN_SECONDS)

    def _on_disk(self, work: Callable[..., T], *given: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk, work, *given)

    async def _copy_to_its_end(self, container: str, position: Position, output: Log, place: Path) -> None:
        ended, said = False, ""
        while not ended:
            ended = not self._alive(container)
            try:
                await self._read(container, position, output, place)
            except StartFailed as error:
                if said != error.message:
                    said = error.message
                    log.info("container.log_broken", container=container[:12], reason=said)
                ended = False
            if not ended:
                await self._clock.sleep(RETRY_SECONDS)

    async def _read(self, container: str, position: Position, output: Log, place: Path) -> None:
        pieces = self._engine.logs(container, _since(position.at))
        before, seen, saved = position.at, 0, self._clock.mono()
        try:
            async with contextlib.aclosing(self._engine.stream(pieces)) as told:
                async for piece in told:
                    lines = []
                    for line in io.BytesIO(piece):  # a carriage return ends none
                        time, _, text = line.partition(b" ")
                        at = time.decode("ascii", "replace")
                        seen += at == before
                        if at < before or (at == before and seen <= position.lines):
                            continue
                        position.lines = position.lines + 1 if at == position.at else 1
                        position.at = at
                        lines.append(text)
                    await self._on_disk(_write, output, lines)
                    if self._clock.mono() >= saved + SAVE_SECONDS:
                        await self._on_disk(_save, place, msgspec.json.encode(position))
                        saved = self._clock.mono()
        finally:
            self._disk.submit(_save, place, msgspec.json.encode(position))


def _begin(place: Path, folder: Path, start: str, sizes: tuple[int, int]) -> tuple[Position, Log]:
    """How far the output of a start was copied, and where it goes on."""
    position = _load(place, start)
    output = Log(str(folder), sizes[0], sizes[1], start)
    if not position.at:
        output.begin()
    return position, output


def _write(output: Log, lines: Sequence[bytes]) -> None:
    for line in lines:
        output.write(line)


def _save(place: Path, position: bytes) -> None:
    with contextlib.suppress(OSError):
        write_atomically(place, position, sync=False)


def _since(at: str) -> int:
    """A line's time as whole seconds since the epoch; 0 for the beginning."""
    if not at.endswith("Z"):
        return 0
    return int(datetime.datetime.fromisoformat(at[:19] + "+00:00").timestamp())


def _load(place: Path, start: str) -> Position:
    try:
        found = msgspec.json.decode(place.read_bytes(), type=Position)
    except (OSError, msgspec.DecodeError):
        return Position(start)
    # Earlier versions took what follows a carriage return for a time.
    return found if found.start == start and found.at[:1].isdecimal() else Position(start)
