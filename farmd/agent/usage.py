"""What each pod of the node uses, from the counters of its control group (version 2), whatever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farmd.agent.cgroups import ROOT, group_of
from farmd.agent.model import Identity, name_of
from store.ports import Clock, Recorder
from store.reality import Usage

SECONDS, LEAST_SECONDS = 10.0, 1.0
MOST_EXPORTED = 200
METRICS = {
    "farmd_pod_cpu_cores": "cores",
    "farmd_pod_cpu_throttled_seconds": "throttled_seconds",
    "farmd_pod_memory_bytes": "memory",
    "farmd_pod_memory_limit_bytes": "memory_limit",
    "farmd_pod_oom_kills": "oom_kills",
    "farmd_pod_tasks": "pids",
    "farmd_pod_disk_read_bytes": "io_read",
    "farmd_pod_disk_written_bytes": "io_written",
}


def folder(node: str, identity: Identity) -> Path | None:
    """The control group of a workload alone; None if it has none, or shares one with others."""
    if identity.group:
        return Path(identity.group)
    own = Path(group_of(identity.pid)) if identity.pid else Path()
    name = name_of(node, identity.instance)
    wanted = identity.handle or (f"{name}.service" if identity.runtime == "systemd" else name)
    # Engines have a container's id in the name of a group, and may make others below that.
    for each in (own, *own.parents):
        if wanted in each.name:
            return ROOT / str(each).lstrip("/")
    return None


def read(group: Path) -> Usage | None:
    """The counters of a group; None if it is gone."""
    cpu = _counters(group / "cpu.stat")
    if not cpu:
        return None
    events = _counters(group / "memory.events")
    disk = [dict(_pairs(words[1:])) for words in _lines(group / "io.stat")]
    return Usage(
        cpu_seconds=cpu.get("usage_usec", 0) / 1e6,
        throttled_seconds=cpu.get("throttled_usec", 0) / 1e6,
        memory=_number(group / "memory.current"),
        memory_peak=_number(group / "memory.peak"),
        memory_limit=_number(group / "memory.max"),
        pids=_number(group / "pids.current"),
        pids_limit=_number(group / "pids.max"),
        io_read=sum(each.get("rbytes", 0) for each in disk),
        io_written=sum(each.get("wbytes", 0) for each in disk),
        oom_kills=events.get("oom_kill", 0),
    )


def _lines(path: Path) -> list[list[str]]:
    with contextlib.suppress(OSError):
        return [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    return []


def _counters(path: Path) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in _lines(path) if len(words) == 2}


def _pairs(words: Iterable[str]) -> Iterator[tuple[str, int]]:
    for word in words:
        name, _, value = word.partition("=")
        if value.isdigit():
            yield name, int(value)


def _number(path: Path) -> int:
    """A file's number; 0 where the kernel does not have the file, or nothing is limited."""
    text = next((words[0] for words in _lines(path) if words), "")
    return int(text) if text.isdigit() else 0


@dataclass(eq=False)
class Usages:
    """Reads the counters of all pods again and again, so that ``cores`` are those of the last seconds.

    With a ``recorder`` each pod is also exported as metrics.
    """

    node: str
    clock: Clock
    identities: Callable[[], Iterable[Identity]]
    recorder: Recorder | None = None
    found: dict[str, Usage] = field(default_factory=dict, init=False)
    _exported: set[str] = field(default_factory=set, init=False)
    _before: dict[str, tuple[str, Usage]] = field(default_factory=dict, init=False)
    _at: float = field(default=-math.inf, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.look()
            await self.clock.sleep(SECONDS)

    async def look(self) -> None:
        """Read all counters once, unless that was done a moment ago."""
        async with self._reading:
            if self.clock.mono() < self._at + LEAST_SECONDS:
                return
            self._at = self.clock.mono()
            known = list(self.identities())
            read_now = await asyncio.to_thread(self._read, known)
            rated = [(each, read_now[each.instance]) for each in known if each.instance in read_now]
            self.found = {each.instance: self._rated(each, usage) for each, usage in rated}
            self._before = {each.instance: (each.start, self.found[each.instance]) for each, _ in rated}
            if self.recorder is not None:
                self._export(self.recorder)

    def _export(self, recorder: Recorder) -> None:
        shown = {name: self.found[name] for name in sorted(self.found)[:MOST_EXPORTED]}
        for name in self._exported - shown.keys():
            for metric in METRICS:
                recorder.forget(metric, pod=name)
        for name, usage in shown.items():
            for metric, field_of in METRICS.items():
                recorder.set(metric, getattr(usage, field_of), pod=name)
        self._exported = set(shown)

    def _read(self, known: Sequence[Identity]) -> dict[str, Usage]:
        found = {}
        for each in known:
            group = folder(self.node, each)
            if group is not None and (usage := read(group)) is not None:
                found[each.instance] = usage
        return found

    def _rated(self, identity: Identity, usage: Usage) -> Usage:
        """The same with its time, its cores since the last time or its start, and its highest memory."""
        now = self.clock.now()
        start, before = self._before.get(identity.instance, ("", usage))
        if start != identity.start:
            before = Usage(at=identity.started)
        passed = now - before.at
        return msgspec.structs.replace(
            usage,
            at=now,
            cores=round(max(usage.cpu_seconds - before.cpu_seconds, 0.0) / passed, 3) if passed > 0 else 0.0,
            memory_peak=max(usage.memory_peak, usage.memory, before.memory_peak),
        )
