"""What the processes and the store of a soak take over time: memory, descriptors, keys, files, the audit.

A sample is a line of JSON. While faults last only the kernel is asked. Files are counted once a round is
over, because a frozen disk answers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tests.soak.fleet import Fleet
from tests.soak.watch import Watch

PAUSE = 10.0


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """What one process takes at a moment."""

    pid: int
    kib: int
    descriptors: int


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment, ``at`` seconds after the beginning. ``round`` is the round that is over; 0: one lasts."""

    at: float
    processes: dict[str, Taken]
    keys: int
    bytes: int
    audits: int
    round: int = 0
    files: int = 0
    file_bytes: int = 0


def taken(pid: int) -> Taken | None:
    """What a process takes; None: it has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return Taken(pid, kib, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))
    return None


class Record:
    """Writes samples of a fleet to a file."""

    def __init__(self, fleet: Fleet, watch: Watch, out: Path) -> None:
        self._fleet, self._watch, self._out = fleet, watch, out
        self._began = time.monotonic()
        out.write_text("")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._write(self._sample())
            await asyncio.sleep(PAUSE)

    async def quiet(self, number: int) -> None:
        """A round is over, and nothing is wrong with any disk."""
        files, size = await asyncio.to_thread(_files, [disk.path for disk in self._fleet.disks.values()])
        self._write(self._sample(round=number, files=files, file_bytes=size))

    def _sample(self, **more: Any) -> Sample:
        size, found = self._watch.size, dict[str, Taken]()
        for name, pid in self._pids():
            if (takes := taken(pid)) is not None:
                found[name] = takes
        at = round(time.monotonic() - self._began, 1)
        return Sample(at, found, size.keys, size.bytes, size.audits, **more)

    def _pids(self) -> Iterable[tuple[str, int]]:
        for part in self._fleet.parts:
            if part.pid is not None:
                yield (
                    part.name.partition("-")[0] if part in self._fleet.agents.values() else part.name,
                    part.pid,
                )
        for number, server in enumerate(self._fleet.consul.servers, 1):
            if server in self._fleet.consul.up:
                yield f"consul-{number}", server.pid

    def _write(self, sample: Sample) -> None:
        with self._out.open("a") as out:
            out.write(json.dumps(msgspec.to_builtins(sample)) + "\n")


def _files(folders: Iterable[Path]) -> tuple[int, int]:
    """How many files there are below, and their bytes."""
    found = [each for folder in folders for each in folder.rglob("*")]
    sizes = list[int]()
    for each in found:
        with contextlib.suppress(OSError):
            if each.is_file():
                sizes.append(each.stat().st_size)
    return len(sizes), sum(sizes)
