"""The workloads that really run, from the kernel's table: an agent's word is not asked."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from store.presence import start_ticks
from tests.fault.invariants import Place

# A machine that many use gives a shim its turn late.
LATE_SECONDS = 10.0


@dataclass(frozen=True)
class Workload:
    """One process of a pod; ``ticks`` tells it from a later process with the same id."""

    pid: int
    ticks: int
    place: Place
    version: str
    stop_after: float = 0.0


def workloads(nodes: Iterable[str]) -> list[Workload]:
    """Every process whose environment says that an agent of these nodes started it as a pod."""
    ours, found = set(nodes), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            told = _environment((entry / "environ").read_bytes())
            pod = (entry / "cmdline").read_bytes().startswith(b"sleep\0")  # and not its health check
            ticks = start_ticks(int(entry.name))
            if told.get("FARMD_NODE") in ours and pod and ticks is not None:
                place = told["FARMD_NODE"], told["FARMD_INSTANCE"]
                version, lease = told.get("SOAK_VERSION", ""), float(told.get("SOAK_STOP_AFTER", 0))
                found.append(Workload(int(entry.name), ticks, place, version, lease))
    return found


def twice(found: Iterable[Workload]) -> list[str]:
    """Places where more than one process of a pod runs; a pod of a soak is one process."""
    counts = Counter(each.place for each in found)
    return [f"{count} processes of {place} run at once" for place, count in counts.items() if count > 1]


def outlived(found: Iterable[Workload], silent_for: Mapping[str, float]) -> list[str]:
    """Pods that run although their agents were killed or stopped for longer than ``stop_after`` (R27)."""
    return [
        f"the process {each.pid} of {each.place} outlived its stop_after"
        for each in found
        if each.stop_after and each.stop_after + LATE_SECONDS < silent_for[each.place[0]]
    ]


def end(found: Iterable[Workload]) -> None:
    """SIGKILL these processes, unless they have ended."""
    for each in found:
        if start_ticks(each.pid) == each.ticks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


def _environment(data: bytes) -> Mapping[str, str]:
    pairs = (item.partition("=") for item in data.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}
