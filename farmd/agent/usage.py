"""What each pod of the node uses, from the counters of its control group (version 2), whatever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farmd.agent.cgroups import ROOT, group_of
from farmd.agent.model import Identity, name_of
from farmd.agent.pod import Pod
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
OTHERS = "(others)"
"""The label of all pods whose owners have no series of their own; no name of an owner has brackets."""
OWNER_COUNTERS = {
    "farmd_owner_cpu_seconds_total": "cpu_seconds",
    "farmd_owner_cpu_throttled_seconds_total": "throttled_seconds",
    "farmd_owner_disk_read_bytes_total": "io_read",
    "farmd_owner_disk_written_bytes_total": "io_written",
}
OOM_KILLS = "farmd_owner_oom_kills_total"
OWNER_GAUGES = {"farmd_owner_memory_bytes": "memory", "farmd_owner_tasks": "pids"}
MEASURED = "farmd_owner_measured_pods"
REQUESTED = {"farmd_owner_cpu_requested_cores": "cpu", "farmd_owner_memory_requested_bytes": "memory"}
OWNER_METRICS = (*OWNER_COUNTERS, OOM_KILLS, *OWNER_GAUGES, MEASURED, *REQUESTED)


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

    With a ``recorder`` each pod is also exported as metrics, and with ``owners`` their sums per owner.
    """

    node: str
    clock: Clock
    pods: Callable[[], Iterable[Pod]]
    recorder: Recorder | None = None
    owners: OwnerSums | None = None
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
            pods = list(self.pods())
            known = [pod.identity for pod in pods if pod.identity is not None]
            read_now = await asyncio.to_thread(self._read, known)
            rated = [(each, read_now[each.instance]) for each in known if each.instance in read_now]
            self.found = {each.instance: self._rated(each, usage) for each, usage in rated}
            self._before = {each.instance: (each.start, self.found[each.instance]) for each, _ in rated}
            if self.recorder is not None:
                self._export(self.recorder)
            if self.owners is not None:
                self.owners.export(pods, self._before)

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


class OwnerSums:
    """Exports what the pods of each owner use together on this node, for at most ``most`` owners.

    An owner is known by the ``id`` of its pods' manifest, which costs no read of the store and stays the same
    for all jobs of a schedule. It keeps its series while the node has pods of it, so that counters do not
    begin again and again; the pods of all owners without room are summed as one.
    """

    def __init__(self, recorder: Recorder, most: int, begun: float) -> None:
        self._recorder = recorder
        self._most = most
        self._begun = begun
        self._shown: list[str] = []
        self._counted: dict[str, _Counted] = {}

    def export(self, pods: Sequence[Pod], used: Mapping[str, tuple[str, Usage]]) -> None:
        """Add to the counters what each pod used since the last time, and set the gauges.

        ``used``: the start of each pod whose usage is known, and what it uses.
        """
        present = {_owner(pod) for pod in pods}
        kept = [name for name in self._shown if name in present]
        names = [*kept, *sorted(present.difference(kept))[: self._most - len(kept)]]
        labels = {name: name if name in names else OTHERS for name in present}
        self._show([*names, *([OTHERS] if OTHERS in labels.values() else [])])
        gauges = {label: dict.fromkeys((*OWNER_GAUGES, MEASURED, *REQUESTED), 0.0) for label in self._shown}
        counted = {}
        for pod in pods:
            label = labels[_owner(pod)]
            before = self._counted.get(pod.instance, _Counted(ended=self._begun))
            counted[pod.instance] = self._count(label, pod, used.get(pod.instance), before)
            for metric, value in _present(pod, used.get(pod.instance)).items():
                gauges[label][metric] += value
        self._counted = counted
        for label, values in gauges.items():
            for metric, value in values.items():
                self._recorder.set(metric, value, owner=label)

    def _show(self, labels: list[str]) -> None:
        for label in set(self._shown).difference(labels):
            for metric in OWNER_METRICS:
                self._recorder.forget(metric, owner=label)
        for label in set(labels).difference(self._shown):
            for metric in (*OWNER_COUNTERS, OOM_KILLS):
                self._recorder.count(metric, 0, owner=label)
        self._shown = labels

    def _count(self, label: str, pod: Pod, now: tuple[str, Usage] | None, before: _Counted) -> _Counted:
        """Count what is new since ``before``; what an earlier agent saw of a start is not new."""
        start, usage, kills = before.start, before.usage, 0
        if now is not None:
            if now[0] != start:
                started_before = pod.identity is not None and pod.identity.started < self._begun
                start, usage = now[0], now[1] if started_before else Usage()
            for metric, field_of in OWNER_COUNTERS.items():
                more = getattr(now[1], field_of) - getattr(usage, field_of)
                self._recorder.count(metric, max(more, 0), owner=label)
            kills, usage = max(now[1].oom_kills - usage.oom_kills, 0), now[1]
        # The group of a start that the kernel ended is mostly gone before it is read: its end counts then.
        ends = [each.at for each in pod.record.exits if each.cause == "oom" and each.at > before.ended]
        seen = before.kills + kills
        self._recorder.count(OOM_KILLS, kills + max(len(ends) - seen, 0), owner=label)
        return _Counted(start, usage, max([before.ended, *ends]), 0 if ends else seen)


class _Counted(msgspec.Struct, frozen=True):
    """What was counted of a pod: its start and the use until now, the last end for want of memory, and the
    kills since that end.
    """

    start: str = ""
    usage: Usage = Usage()
    ended: float = 0.0
    kills: int = 0


def _owner(pod: Pod) -> str:
    """The id of the pod's manifest, which its instance begins with."""
    return pod.instance.partition("~")[0]


def _present(pod: Pod, now: tuple[str, Usage] | None) -> dict[str, float]:
    """The gauges of one pod; one that does not run asks for nothing."""
    manifest = (pod.manifest or pod.target) if pod.identity is not None else None
    asks = manifest.resources if manifest is not None else {}
    found = {metric: asks.get(name, 0.0) for metric, name in REQUESTED.items()}
    if now is not None:
        found |= {metric: getattr(now[1], name) for metric, name in OWNER_GAUGES.items()} | {MEASURED: 1.0}
    return found
