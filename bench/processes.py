"""Child processes of a row: they tell events as JSON lines, read commands on stdin, and end with it.

Events have a pipe of their own: a program's log on stdout writes its lines in pieces, and from other threads.

However a row ends, ^C and SIGKILL included, the stdin of its children closes and ends them. Each child has a
session of its own, so that a terminal's ^C reaches only the row, which then ends its children in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from tests import reaper

ROOT = Path(__file__).parent.parent
STOP_SECONDS = 15.0
LONGEST_LINE = 1 << 20
EVENTS_FD = "FARMD_BENCH_EVENTS_FD"
"""The variable that names the pipe for events to a child; without it they go to stdout."""
_telling = threading.Lock()


def tell(event: str, **fields: object) -> None:
    """Send one line to the parent, from any thread; ``at`` is the machine's monotonic time."""
    rest = json.dumps({"event": f"bench.{event}", "at": time.monotonic(), **fields}).encode() + b"\n"
    to = int(os.environ.get(EVENTS_FD, sys.stdout.fileno()))
    with _telling:  # a pipe takes more than 4 KiB in pieces
        while rest:
            rest = rest[os.write(to, rest) :]


async def commands() -> AsyncIterator[str]:
    """Lines on stdin, until it ends."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        yield line.decode().strip()


class Child:
    """A child process as its parent sees it; ``events`` grow as lines arrive."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self.spawned = time.monotonic()
        events, told = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, EVENTS_FD: str(told)},
            pass_fds=[told],
            start_new_session=True,
        )
        os.close(told)
        reaper.started(self.process.pid)
        self.events: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        pipes = self.process.stdout, os.fdopen(events, "rb", buffering=0)
        self._reading = [asyncio.create_task(self._read(pipe)) for pipe in pipes]

    async def _read(self, pipe: IO[bytes]) -> None:
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            async for line in reader:
                self.events.append(_timed(json.loads(line)))
        finally:
            transport.close()

    def at(self, event: str) -> float | None:
        """When an event was first reported; None if it was not."""
        return next((each["at"] for each in self.events if each["event"] == event), None)

    async def heard(self, event: str, within: float) -> dict[str, Any]:
        """Wait for the first event of this name and return it."""
        await self.until(lambda: self.at(event) is not None, within, event)
        return next(each for each in self.events if each["event"] == event)

    async def ask(self, line: str, answer: str, within: float = 10.0) -> dict[str, Any]:
        """Write a line to the child's stdin, and wait for its answer."""
        known = len(self.events)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events[known:] if each["event"] == answer]

        await self.until(lambda: bool(found()), within, f"the answer to {line!r}")
        return found()[0]

    async def until(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Return when the condition holds.

        Raises:
            RuntimeError: the condition did not become true in time, or the process ended.
            ValueError: a line of the process is no JSON.
        """

        def ended_or() -> bool:
            for reading in self._reading:
                if reading.done():
                    reading.result()  # its error, at once and not as an answer that does not come
            if self.process.poll() is not None:
                last = "\n".join(map(str, self.events[-3:]))
                raise RuntimeError(f"a process ended with {self.process.returncode} before {what}:\n{last}")
            return condition()

        await wait_for(ended_or, within, what)

    def cpu_seconds(self) -> float:
        """CPU seconds of the process so far."""
        return cpu_seconds(self.process.pid)

    def resident_megabytes(self) -> float:
        """Resident memory of the process now."""
        return resident_megabytes(self.process.pid)

    async def end(self, kill: bool = False) -> None:
        """Stop the process, with SIGKILL if ``kill``, and reap it. May be called twice."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        reaper.reaped(self.process.pid)
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.gather(*self._reading)


def _timed(event: dict[str, Any]) -> dict[str, Any]:
    """An event with the machine's monotonic time; log lines of production have only wall-clock time."""
    if "at" not in event:
        ago = time.time() - datetime.fromisoformat(event["ts"]).timestamp()
        event["at"] = time.monotonic() - ago
    return event


async def wait_for(condition: Callable[[], bool], within: float, what: str) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within {within} s")
        await asyncio.sleep(0.02)


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
