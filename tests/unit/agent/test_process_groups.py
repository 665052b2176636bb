"""Limits of processes: what their control group is told, and what becomes of a start whose group cannot be.

``tests/integration/runtimes/shipped.py`` has the groups themselves, on a machine with version 2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from farmd.agent import cgroups, group, usage
from farmd.agent.cgroups import Cgroups, values
from farmd.agent.errors import StartFailed
from farmd.agent.health import Damper
from farmd.agent.model import Identity, Record
from farmd.agent.pod import Pod
from farmd.agent.runtimes.process import Processes
from farmd.agent.runtimes.runtime import Launch
from farmd.agent.state import StateDirectory
from farmd.agent.usage import OwnerSums, Usages
from farmd.agent.users import Users
from farmd.observe.recorder import Metrics
from store.containers import Limits
from store.manifests import Manifest
from store.presence import start_ticks
from store.reality import Exit, Usage
from tests.still_clock import StillClock

MEMORY = Limits(memory=64 << 20)


def pod(limits: Limits) -> Manifest:
    return Manifest(id="web", command=["sleep", "100"], limits=limits)


def test_each_limit_is_one_file_and_none_is_written_for_what_is_unlimited() -> None:
    asked = pod(Limits(memory=64 << 20, cpu=0.01, pids=9, io_weight=500))
    assert values(asked, "io.bfq.weight") == [
        ("limits.memory", "memory.max", "67108864"),
        ("limits.memory", "memory.swap.max", "0"),
        ("limits.cpu", "cpu.max", "1000 100000"),
        ("limits.pids", "pids.max", "9"),
        ("limits.io_weight", "io.bfq.weight", "default 500"),
    ]
    assert values(pod(Limits()), "io.weight") == []


@pytest.mark.parametrize(
    ("setting", "hierarchy", "why"),
    [
        ("none", True, "agent.cgroup is none"),
        ("auto", False, "is no hierarchy of control groups of version 2"),
        ("auto", True, "which is not that of farmd-agent.service: name a folder below"),
        ("missing", True, "agent.cgroup: the control group"),
    ],
)
def test_a_node_without_groups_says_why_and_refuses_limits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, hierarchy: bool, why: str
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    if hierarchy:
        (tmp_path / "cgroup.controllers").touch()
    found = Cgroups(str(tmp_path / setting) if setting == "missing" else setting, "n1", tmp_path)
    found.look()
    assert why in found.why
    assert found.features() == []
    found.preflight(pod(Limits()))
    with pytest.raises(StartFailed, match=r"^limits: this node cannot limit processes: ") as caught:
        found.preflight(pod(MEMORY))
    assert "\n" not in caught.value.message


class NoGroups(Cgroups):
    """Groups that could be made a moment ago; now their folder is no part of a hierarchy."""

    def __init__(self, base: Path) -> None:
        super().__init__("auto", "n1", base)
        self._base, self.why = base, ""


def test_a_group_that_cannot_be_made_refuses_limits_and_stops_no_other_start(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    for path in (state.root, state.instances, state.manifests):
        path.mkdir(mode=0o711)
    processes = Processes(state, "n1", {"PATH": os.environ["PATH"]}, StillClock(), Users(share=True))
    processes.groups = NoGroups(tmp_path / "groups")
    given = {"instance": "web", "sha": "a" * 64, "ports": {}, "started": time.time()}
    with pytest.raises(StartFailed, match=r"^limits: the control group .*farmd\.\.n1\.\.web\.\.") as caught:
        processes.launch(Launch(manifest=pod(MEMORY), start="s1", **given))
    assert "\n" not in caught.value.message
    assert processes.find("web") is None
    identity = processes.launch(Launch(manifest=pod(Limits()), start="s2", **given))
    assert identity.group == ""
    processes.send(identity, signal.SIGKILL)


@pytest.mark.parametrize(
    ("runtime", "handle", "group", "found"),
    [
        ("process", "", "/system.slice/farmd-agent.service", None),
        ("process", "", "/", None),
        ("systemd", "", "/system.slice/farmd..n1..web.service", "system.slice/farmd..n1..web.service"),
        ("systemd", "", "/system.slice/farmd..n1..web.service/inner", "system.slice/farmd..n1..web.service"),
        ("container", "c0ffee", "/system.slice/docker-c0ffee.scope", "system.slice/docker-c0ffee.scope"),
        ("container", "c0ffee", "/libpod_parent/libpod-c0ffee/container", "libpod_parent/libpod-c0ffee"),
        ("container", "c0ffee", "/libpod_parent/libpod-bad/container", None),
    ],
)
def test_only_a_group_of_the_workload_alone_tells_what_it_uses(
    monkeypatch: pytest.MonkeyPatch, runtime: str, handle: str, group: str, found: str | None
) -> None:
    monkeypatch.setattr(usage, "group_of", lambda _: group)
    identity = Identity(
        instance="web", manifest="", start="s1", started=0.0, pid=7, runtime=runtime, handle=handle
    )
    assert usage.folder("n1", identity) == (None if found is None else cgroups.ROOT / found)


async def test_usage_is_read_from_a_group_and_cores_are_those_since_the_last_time(tmp_path: Path) -> None:
    files = {
        "cpu.stat": "usage_usec 4000000\nuser_usec 1\nthrottled_usec 500000\n",
        "memory.current": "1000\n",
        "memory.max": "max\n",
        "memory.events": "oom 2\noom_kill 3\n",
        "pids.current": "2\n",
        "io.stat": "8:0 rbytes=10 wbytes=1 rios=1\n8:16 rbytes=5 wbytes=2 rios=1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    clock = StillClock()
    begun = clock.now()
    identity = Identity(instance="web", manifest="", start="s1", started=begun - 8, group=str(tmp_path))
    registry = CollectorRegistry()
    pods = [Pod(Record(instance="web"), Damper(0.0), identity=identity)]
    usages = Usages("n1", clock, lambda: pods, Metrics(registry, "agent"))
    await usages.look()
    assert usages.found["web"] == Usage(
        at=begun, cores=0.5, cpu_seconds=4.0, throttled_seconds=0.5, memory=1000, memory_peak=1000, pids=2,
        io_read=15, io_written=3, oom_kills=3,
    )  # fmt: skip
    assert registry.get_sample_value("farmd_pod_oom_kills", {"pod": "web"}) == 3
    (tmp_path / "cpu.stat").write_text("usage_usec 7000000\n")
    (tmp_path / "memory.current").write_text("900\n")
    clock.seconds += 2.0
    await usages.look()
    assert (usages.found["web"].cores, usages.found["web"].memory_peak) == (1.5, 1000)
    (tmp_path / "cpu.stat").unlink()
    clock.seconds += 2.0
    await usages.look()
    assert usages.found == {}
    assert registry.get_sample_value("farmd_pod_oom_kills", {"pod": "web"}) is None


class Owners:
    """The pods of a node without a kernel, and what is exported of their owners."""

    def __init__(self, most: int) -> None:
        self.registry = CollectorRegistry()
        self.sums = OwnerSums(Metrics(self.registry, "agent"), most, begun=100.0)
        self.pods: dict[str, Pod] = {}
        self.used: dict[str, tuple[str, Usage]] = {}

    def runs(self, instance: str, start: str, started: float, usage: Usage, *ends: Exit) -> None:
        identity = Identity(instance=instance, manifest="", start=start, started=started)
        manifest = Manifest(id=instance.partition("~")[0], command=["x"], resources={"cpu": 2, "memory": 50})
        record = Record(instance=instance, exits=list(ends))
        self.pods[instance] = Pod(record, Damper(0.0), manifest=manifest, identity=identity)
        self.used[instance] = (start, usage)

    def told(self, metric: str, owner: str) -> float | None:
        self.sums.export(list(self.pods.values()), self.used)
        return self.registry.get_sample_value(f"farmd_owner_{metric}", {"owner": owner})


def test_the_pods_of_an_owner_are_summed_and_counters_count_what_this_agent_saw() -> None:
    node = Owners(most=20)
    node.runs("web~1", "s1", 50.0, Usage(cpu_seconds=1000.0, memory=30, pids=2))  # before the agent
    node.runs("web~2", "s2", 101.0, Usage(cpu_seconds=4.0, memory=12, pids=1))
    assert node.told("cpu_seconds_total", "web") == 4.0
    assert [node.told(each, "web") for each in ("memory_bytes", "tasks", "measured_pods")] == [42, 3, 2]
    assert node.told("cpu_requested_cores", "web") == 4.0
    assert node.told("memory_requested_bytes", "web") == 100.0
    node.runs("web~1", "s1", 50.0, Usage(cpu_seconds=1003.0))
    node.runs("web~2", "s3", 120.0, Usage(cpu_seconds=2.0))  # started again: its counters began again
    assert node.told("cpu_seconds_total", "web") == 9.0
    assert node.told("cpu_seconds_total", "web") == 9.0
    node.pods, node.used = {"web~1": Pod(Record(instance="web~1"), Damper(0.0))}, {}
    assert [node.told(each, "web") for each in ("cpu_seconds_total", "memory_bytes")] == [9.0, 0.0]


def test_an_owners_kills_for_memory_count_once_also_where_the_group_went_with_its_process() -> None:
    node = Owners(most=20)
    node.runs("web", "s1", 101.0, Usage(oom_kills=1), Exit(at=90.0, code=-9, cause="oom"))
    assert node.told("oom_kills_total", "web") == 1  # of a child of it; what was before the agent is not
    node.runs("web", "s2", 130.0, Usage(), Exit(at=120.0, code=-9, cause="oom"))
    assert node.told("oom_kills_total", "web") == 1
    ends = [Exit(at=float(at), code=-9, cause="oom") for at in (120, 131, 132)]
    node.runs("web", "s4", 133.0, Usage(), *ends)
    assert node.told("oom_kills_total", "web") == 3
    node.used.clear()
    assert node.told("oom_kills_total", "web") == 3


def test_owners_without_room_for_their_own_series_are_summed_as_one() -> None:
    node = Owners(most=1)
    node.runs("b", "s1", 101.0, Usage(cpu_seconds=1.0))
    assert node.told("cpu_seconds_total", "b") == 1.0
    node.runs("a", "s2", 101.0, Usage(cpu_seconds=2.0))
    node.runs("c", "s3", 101.0, Usage(cpu_seconds=4.0))
    assert node.told("cpu_seconds_total", "(others)") == 6.0
    assert [node.told("cpu_seconds_total", each) for each in "abc"] == [None, 1.0, None]
    del node.pods["b"], node.pods["c"]
    node.runs("a", "s2", 101.0, Usage(cpu_seconds=7.0))
    assert [node.told("cpu_seconds_total", each) for each in ("a", "b", "(others)")] == [5.0, None, None]


def test_a_kernel_without_cgroup_kill_is_told_of_each_process_in_the_group_and_below(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with subprocess.Popen(["sleep", "100"]) as one, subprocess.Popen(["sleep", "100"]) as two:
        (tmp_path / "cgroup.procs").write_text(f"{one.pid}\n")
        (inner / "cgroup.procs").write_text(f"{two.pid}\n")
        group.kill(str(tmp_path))
        assert (one.wait(20), two.wait(20)) == (-9, -9)


@pytest.fixture
def hierarchy() -> Iterator[Path]:
    """A group of version 2, which need not have controllers."""
    roots = [root for root in (cgroups.ROOT, cgroups.ROOT / "unified") if (root / "cgroup.procs").exists()]
    folder = roots[0] / f"farmd-test-{uuid4().hex[:12]}" if roots else cgroups.ROOT / "none"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this machine lets nobody make a control group of version 2")
    yield folder
    assert group.end(str(folder))


async def test_what_a_check_started_is_in_a_group_with_the_limits_and_ends_with_it(
    tmp_path: Path, hierarchy: Path
) -> None:
    state = StateDirectory(tmp_path)
    state.instances.mkdir()
    state.create("web")
    processes = Processes(state, "n1", {"PATH": os.environ["PATH"]}, StillClock(), Users(share=True))
    own = hierarchy / "own"
    own.mkdir()
    identity = Identity(instance="web", manifest="m", start="s1", started=0.0, group=str(own))
    # Without controllers this is the one limit that writes nothing.
    limited = Manifest(id="web", command=["true"], limits=Limits(io_weight=50))
    out = tmp_path / "out"
    script = f"cat /proc/self/cgroup >{out}; setsid sleep 1000 & echo $! >>{out}"
    assert await processes.check(identity, limited, ["sh", "-c", script]) == 0
    *lines, pid = out.read_text().splitlines()
    assert any(line.endswith(f"/{hierarchy.name}/own..command0") for line in lines)
    assert start_ticks(int(pid)) in (0, None)
    assert [each.name for each in hierarchy.iterdir() if each.is_dir()] == ["own"]


async def test_the_groups_that_a_killed_shim_and_agent_left_go_with_their_pod(
    tmp_path: Path, hierarchy: Path
) -> None:
    state = StateDirectory(tmp_path)
    state.instances.mkdir()
    processes = Processes(state, "n1", {"PATH": os.environ["PATH"]}, StillClock(), Users(share=True))
    processes.groups = NoGroups(hierarchy)
    left = [processes.groups.start(each, pod(MEMORY))["group"] for each in ("web", "web1")]
    for path in (left[0], f"{left[0]}..command0", left[1]):
        Path(path).mkdir()
    with subprocess.Popen(["sleep", "100"]) as stray:
        group.write(left[0] + group.PROCESSES, str(stray.pid))
        try:
            await processes.remove("web")
            assert stray.wait(20) == -signal.SIGKILL
        finally:
            stray.kill()
    assert [str(each) for each in hierarchy.iterdir() if each.is_dir()] == [left[1]]
