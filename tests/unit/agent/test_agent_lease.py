"""The lease of pods with ``stop_after``: when what is due, and shims that hold it without an agent (R27)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.agent import exits, lease
from farmd.agent.lease import AGAIN_SECONDS, Leases, step, stops_at
from farmd.agent.runtimes import guards
from farmd.agent.runtimes import process as runtimes_process
from farmd.agent.runtimes.process import Processes
from farmd.agent.users import Users
from store.manifests import Stop
from store.presence import is_own, start_ticks
from tests.still_clock import StillClock
from tests.unit.agent.test_agent_shim import Bench, until


@pytest.mark.parametrize(
    ("isolated", "stop_after", "grace", "due"),
    [
        (-5.0, 30.0, 10.0, ("", 25.0)),
        (19.0, 30.0, 10.0, ("", 1.0)),
        (20.0, 30.0, 10.0, ("stop", 10.0)),
        (29.0, 30.0, 10.0, ("stop", 1.0)),
        (30.0, 30.0, 10.0, ("kill", AGAIN_SECONDS)),
        (14.0, 30.0, 1e9, ("", 1.0)),
        (15.0, 30.0, 1e9, ("stop", 15.0)),
        (0.0, 1.0, 0.0, ("", 1.0)),
        (3600.0, 30.0, 10.0, ("kill", AGAIN_SECONDS)),
    ],
)
def test_r27_the_grace_lies_within_stop_after(
    isolated: float, stop_after: float, grace: float, due: tuple[str, float]
) -> None:
    assert step(isolated, stop_after, grace) == due


@given(st.floats(0.001, 1e9), st.floats(0, 1e9), st.floats(-1e3, 1e9))
def test_r27_nothing_is_due_in_the_first_half_and_all_at_the_end(
    stop_after: float, grace: float, isolated: float
) -> None:
    what, pause = step(isolated, stop_after, grace)
    assert pause >= 0
    assert stop_after / 2 <= stops_at(stop_after, grace) <= stop_after
    assert (what == "kill") == (isolated >= stop_after)
    assert what == "" or isolated >= stop_after / 2


class Leased(Bench):
    """Shims of an agent that renews only when a test says so."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.leases = Leases()
        self.processes = Processes(
            self.state, "n1", self.environ, StillClock(), Users(share=True), self.leases
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Leased]:
    made = Leased(tmp_path)
    yield made
    made.close()


def test_r27_a_shim_ends_its_pod_without_an_agent(bench: Leased) -> None:
    bench.leases.renewed(3600)
    going = bench.sh("exec sleep 1000", stop_after=0.2, start="s1")
    free = bench.start("sleep", "1000", instance="free")
    assert lease.overdue_of(going.shim) is not None
    assert lease.overdue_of(free.shim) is None
    stopped = bench.start("sleep", "1000", instance="other", start="s2", stop_after=3600)
    late = Leases()
    bench.processes._leases = late  # of an agent that never had contact
    bench.start("sleep", "1000", instance="late", start="s3", stop_after=0.2)
    bench.exit("s3", "late")
    assert exits.read(bench.state.directory("late"))["s3"].cut_off
    assert [start_ticks(each.pid) for each in (going, free, stopped)].count(None) == 0
    late.close()


def test_r27_who_ignores_the_stop_signal_is_killed_within_stop_after_with_all_that_it_left(
    bench: Leased,
) -> None:
    script = "trap '' TERM; setsid sh -c 'echo $$ > orphan; exec sleep 1000' & while :; do sleep 0.01; done"
    bench.leases.renewed(0.5)
    identity = bench.sh(script, stop_after=0.6, stop=Stop(grace=1000))
    orphan = bench.state.work("web") / "orphan"
    until(lambda: orphan.exists() and orphan.read_text().strip())
    assert bench.exit().code == -signal.SIGKILL
    assert exits.read(bench.state.directory("web"))["s1"].cut_off
    assert start_ticks(int(orphan.read_text())) is None
    assert start_ticks(identity.pid) is None


def test_r27_a_shim_that_hangs_on_the_disk_of_its_log_ends_its_pod_all_the_same(bench: Leased) -> None:
    bench.leases.renewed(3)
    identity = bench.sh("while :; do echo line; sleep 0.01; done", stop_after=0.2)
    path = bench.state.logs("web") / "current.log"
    until(lambda: (bench.leases.renewed(3), path.read_text())[1])
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    pipe.rename(path)  # the shim opens it anew, and waits for a reader
    until(lambda: start_ticks(identity.pid) is None)
    assert start_ticks(identity.shim) == identity.shim_ticks
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: start_ticks(identity.shim) is None)
    os.close(reader)


def test_r27_who_only_looks_like_a_guard_of_this_agent_is_none(tmp_path: Path) -> None:
    """Anybody may choose their command line, and would hold the lease of every pod."""
    words = ["/bin/sh", "-c", "echo; read line", guards.SCRIPT, str(tmp_path / "web"), "c1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": "/"}
    found = []
    for user in [None, *([65534] if os.geteuid() == 0 else [])]:
        with subprocess.Popen(words, user=user, **pipes) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found.append(
                process.pid in {pid for pid, _, _ in runtimes_process.processes(guards.SCRIPT, tmp_path, 1)}
            )
            process.kill()
    assert found == [True, False][: len(found)]
    assert is_own(os.getpid())
    assert is_own(1) == (Path("/proc/1").stat().st_uid == os.geteuid())
