"""The shim with real processes: identity first, one at a time, whole groups, exits on disk (R26)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from farmd.agent import exits
from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.runtimes import container_files, process, runtime, shims
from farmd.agent.runtimes.process import Processes
from farmd.agent.runtimes.runtime import Busy, Launch
from farmd.agent.runtimes.shims import SHIM, workload_lives
from farmd.agent.secrets import Opened
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from farmd.runtime.clock import SystemClock
from store.containers import Mount
from store.manifests import Init, Logs, Manifest
from store.presence import boot_id, start_ticks
from store.reality import Exit
from tests.still_clock import StillClock

SHA = "a" * 64


def until(condition: Callable[[], object], within: float = 20.0) -> object:
    deadline = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)
    return answer


class Bench:
    """A state directory and a runtime; kills what a test leaves."""

    def __init__(self, root: Path) -> None:
        self.state = StateDirectory(root / "state")
        for path in (self.state.root, self.state.instances, self.state.manifests):
            path.mkdir(mode=0o711)
        self.environ = {"PATH": os.environ["PATH"], "CONSUL_HTTP_TOKEN": "secret", "LANG": "C.UTF-8"}
        self.processes = Processes(self.state, "n1", self.environ, StillClock(), Users(share=True))
        self.started: list[Identity] = []

    def start(self, *command: str, instance: str = "web", start: str = "s1", **fields: object) -> Identity:
        manifest = Manifest(**({"id": "web", "command": list(command)} | fields))
        identity = self.processes.launch(
            Launch(instance=instance, sha=SHA, manifest=manifest, ports={}, start=start, started=time.time())
        )
        self.started.append(identity)
        return identity

    def sh(self, script: str, **fields: object) -> Identity:
        return self.start("/bin/sh", "-c", script, **fields)

    def exit(self, start: str = "s1", instance: str = "web") -> Exit:
        until(lambda: start in exits.read(self.state.directory(instance)))
        until(lambda: not self.state.shim_holds(instance))
        return exits.read(self.state.directory(instance))[start]

    def log(self, instance: str = "web") -> str:
        path = self.state.logs(instance) / "current.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for identity in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(identity.pid, signal.SIGKILL)
            if start_ticks(identity.shim) == identity.shim_ticks:
                until(lambda i=identity: start_ticks(i.shim) != i.shim_ticks)
            self.processes.reap(identity)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_r26_the_identity_is_recorded_with_boot_and_ticks(bench: Bench) -> None:
    identity = bench.sh("sleep 100")
    assert bench.processes.find("web") == identity
    assert identity.boot == boot_id()
    assert start_ticks(identity.pid) == identity.ticks
    assert start_ticks(identity.shim) == identity.shim_ticks
    assert (identity.instance, identity.manifest, identity.start) == ("web", SHA, "s1")
    assert os.getsid(identity.pid) == os.getpgid(identity.pid) == identity.pid
    assert os.getsid(identity.shim) == identity.shim != os.getsid(0)


def test_r26_a_reused_pid_is_another_process(bench: Bench) -> None:
    identity = bench.sh("sleep 100")
    other = msgspec.structs.replace(identity, ticks=identity.ticks - 1)
    rebooted = msgspec.structs.replace(identity, boot="another")
    assert workload_lives(identity, bench.processes.boot)
    assert not workload_lives(other, bench.processes.boot)
    assert not workload_lives(rebooted, bench.processes.boot)
    assert not bench.processes.send(other, signal.SIGKILL)
    assert start_ticks(identity.pid) == identity.ticks


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
def test_r26_exits_are_recorded_on_disk(bench: Bench, script: str, code: int) -> None:
    before = time.time()
    bench.sh(script)
    end = bench.exit()
    assert end.code == code
    assert before <= end.at <= time.time()
    until(lambda: bench.processes.find("web") is None)  # a process ends a little after it lets its files go


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9)])
def test_r26_an_end_that_cannot_be_recorded_is_told_by_the_shims_own_end(
    bench: Bench, tmp_path: Path, script: str, code: int
) -> None:
    identity = bench.sh(f"while test ! -e {tmp_path}/end; do sleep 0.01; done; {script}")
    shutil.rmtree(bench.state.directory("web"))
    (tmp_path / "end").touch()
    until(lambda: not bench.processes.lives(identity))
    assert bench.processes.reap(identity) == code


def test_r26_a_shim_that_was_killed_tells_nothing_of_its_workload(bench: Bench) -> None:
    identity = bench.sh("exec sleep 100")
    os.kill(identity.shim, signal.SIGKILL)
    until(lambda: not bench.processes.lives(identity))
    assert bench.processes.reap(identity) is None


def test_r26_ends_of_several_starts_are_told_apart(bench: Bench) -> None:
    bench.sh("exit 1", start="s1")
    bench.exit("s1")
    bench.sh("exit 2", start="s2")
    bench.exit("s2")
    assert {start: end.code for start, end in exits.read(bench.state.directory("web")).items()} == {
        "s1": 1,
        "s2": 2,
    }


def test_r26_there_is_never_a_second_process_of_an_instance(bench: Bench, tmp_path: Path) -> None:
    first = bench.sh("sleep 100")
    with pytest.raises(Busy):
        bench.sh(f"touch {tmp_path}/second", start="s2")
    assert bench.processes.find("web") == first
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program", "command no-such-program: No such file or directory"),
        ("/etc/passwd", "command /etc/passwd: Permission denied"),
    ],
)
def test_a_program_that_cannot_run_is_a_clear_reason(bench: Bench, command: str, reason: str) -> None:
    with pytest.raises(StartFailed, match=reason):
        bench.start(command)
    assert exits.read(bench.state.directory("web")) == {}
    until(lambda: not bench.state.shim_holds("web"))


def test_a_missing_working_directory_is_a_clear_reason(bench: Bench) -> None:
    with pytest.raises(StartFailed, match="working_directory /nowhere: No such file"):
        bench.start("true", working_directory="/nowhere")


def test_environment_directory_and_limits_of_a_workload(bench: Bench) -> None:
    bench.sh("env; pwd; ulimit -n; exec sleep 100", env={"A": "two words"}, ulimits={"nofile": 77})
    until(lambda: bench.log().endswith("77\n"))
    lines = bench.log().splitlines()
    assert "A=two words" in lines
    assert "FARMD_NODE=n1" in lines
    assert "FARMD_INSTANCE=web" in lines
    assert str(bench.state.work("web")) in lines
    assert "secret" not in bench.log()


def test_a_workload_does_not_begin_where_something_else_is_mounted_than_was_judged(
    bench: Bench, tmp_path: Path
) -> None:
    """Who may write to a folder above a bound one may exchange it until it is mounted."""
    bound, mark = tmp_path / "bound", tmp_path / "began"
    bound.mkdir()
    ready = bench.processes.ready
    places = [(str(bound), *runtime.identity(str(bound)))]
    bench.processes.ready = lambda launch: ready(launch, places)  # type: ignore[method-assign, misc]
    bench.start("/bin/true")
    assert bench.exit().code == 0
    bound.rmdir()
    bound.symlink_to("/etc")
    with pytest.raises(StartFailed, match="its source was replaced while the workload started"):
        bench.start("/bin/touch", str(mark), start="s2")
    assert not mark.exists()


def test_what_was_judged_is_reached_by_no_link(tmp_path: Path) -> None:
    (tmp_path / "own" / "data").mkdir(parents=True)
    found = (tmp_path / "own" / "data").stat()
    assert runtime.identity(f"{tmp_path}/own/data") == (found.st_dev, found.st_ino)
    (tmp_path / "own").rename(tmp_path / "away")
    (tmp_path / "own").symlink_to(tmp_path / "away")
    with pytest.raises(StartFailed, match="was replaced by a link"):
        runtime.identity(f"{tmp_path}/own/data")


def test_folders_of_a_bind_are_made_through_no_link(tmp_path: Path) -> None:
    mount = Mount(type="bind", target="/data", source=f"{tmp_path}/own/data/new", create=True)
    manifest = Manifest(id="web", runtime="systemd", command=["x"], mounts=[mount])
    container_files.lay_out(tmp_path / "files", manifest, tmp_path)
    assert (tmp_path / "own" / "data" / "new").is_dir()
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "secret").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "secret")  # after the path was judged
    with pytest.raises(StartFailed, match="was replaced by a link"):
        container_files.lay_out(tmp_path / "files", manifest, tmp_path)
    assert not list((tmp_path / "secret").iterdir())
    (tmp_path / "own").unlink()
    (tmp_path / "own").touch()
    with pytest.raises(StartFailed, match="cannot be made: Not a directory"):
        container_files.lay_out(tmp_path / "files", manifest, tmp_path)


def test_secrets_are_neither_in_the_shims_environment_nor_on_disk(bench: Bench) -> None:
    identity = bench.sh("sleep 100", env={"PASSWORD": "hunter2"})
    assert b"hunter2" not in Path(f"/proc/{identity.shim}/environ").read_bytes()
    for path in bench.state.root.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_workload_starts_with_default_signals(bench: Bench, number: signal.Signals) -> None:
    identity = bench.sh("exec sleep 100")
    until(lambda: b"sleep" in Path(f"/proc/{identity.pid}/cmdline").read_bytes())
    assert bench.processes.send(identity, number)
    assert bench.exit().code == -number


def test_r26_a_stop_reaches_the_whole_group(bench: Bench) -> None:
    identity = bench.sh("sleep 1001 & sleep 1002 & echo up; wait")
    until(lambda: "up" in bench.log())
    members = [pid for pid in _processes() if _group(pid) == identity.pid]
    assert len(members) == 3
    bench.processes.send(identity, signal.SIGTERM)
    bench.exit()
    assert not any(_group(pid) == identity.pid for pid in _processes())


def test_r26_the_stop_signal_itself_reaches_the_whole_group(bench: Bench) -> None:
    child = "(trap 'echo child stops; exit 0' TERM; echo up; while :; do sleep 0.02; done)"
    identity = bench.sh(f"{child} & trap 'wait; echo parent stops; exit 0' TERM; wait; wait")
    until(lambda: "up" in bench.log())
    bench.processes.send(identity, signal.SIGTERM)
    assert bench.exit().code == 0
    assert bench.log().endswith("child stops\nparent stops\n")


def test_r26_orphans_that_left_the_group_end_with_the_workload(bench: Bench) -> None:
    bench.sh("(setsid sh -c 'echo $$; exec sleep 1003' &); sleep 0.1; exit 7")
    assert bench.exit().code == 7
    orphan = int(bench.log().split()[0])
    assert start_ticks(orphan) is None


def test_r26_dead_orphans_are_reaped_while_the_workload_lives(bench: Bench) -> None:
    bench.sh("(setsid sh -c 'echo $$' &); exec sleep 100")
    until(lambda: bench.log().strip())
    orphan = int(bench.log().split()[0])
    until(lambda: not Path(f"/proc/{orphan}").exists())


def test_r27_a_stopped_shim_passes_the_signal_on_and_records_the_end(bench: Bench) -> None:
    identity = bench.sh("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in bench.log())
    os.kill(identity.shim, signal.SIGTERM)
    assert bench.exit().code == 5
    assert "bye" in bench.log()


def test_r27_hangup_and_interrupt_do_not_touch_a_shim(bench: Bench) -> None:
    identity = bench.sh("sleep 100")
    os.kill(identity.shim, signal.SIGHUP)
    os.kill(identity.shim, signal.SIGINT)
    bench.processes.send(identity, signal.SIGTERM)
    assert bench.exit().code == -15


def test_r27_workload_and_logs_go_on_without_the_agent(tmp_path: Path) -> None:
    """A process starts a workload and dies by SIGKILL; the workload's output still reaches its log."""
    script = f"""
import os, pathlib, signal, time
from farmd.agent.runtimes.runtime import Launch
from farmd.agent.runtimes.process import Processes
from farmd.runtime.clock import SystemClock
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.manifests import Manifest
state = StateDirectory(pathlib.Path({str(tmp_path)!r}))
state.instances.mkdir(); state.manifests.mkdir()
processes = Processes(state, "n1", os.environ, SystemClock(), Users(share=True))
processes.launch(Launch(instance="web", sha="{SHA}", ports={{}}, start="s1",
    manifest=Manifest(id="web", command=["sh", "-c", "while [ ! -e ../go ]; do sleep 0.1; done; echo after"]),
    started=time.time()))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path.cwd(), timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    state = StateDirectory(tmp_path)
    processes = Processes(state, "n1", {}, StillClock(), Users(share=True))
    identity = processes.find("web")
    assert identity is not None
    assert processes.lives(identity)
    (state.directory("web") / "go").touch()
    until(lambda: "s1" in exits.read(state.directory("web")))
    assert exits.read(state.directory("web"))["s1"].code == 0
    assert (state.logs("web") / "current.log").read_text() == "after\n"


def test_a_lost_shim_leaves_a_workload_that_can_be_killed(bench: Bench) -> None:
    identity = bench.sh("exec sleep 100")
    os.kill(identity.shim, signal.SIGKILL)
    until(lambda: not bench.processes.lives(identity))
    assert bench.processes.kill_leftovers(identity)
    until(lambda: start_ticks(identity.pid) is None)
    assert not bench.processes.kill_leftovers(identity)


def test_logs_rotate_by_size_at_line_ends_and_keep_a_few(bench: Bench) -> None:
    bench.sh("i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done", logs=Logs(1024, 2))
    bench.exit()
    files = sorted(path.name for path in bench.state.logs("web").glob("current.log*"))
    assert files == ["current.log", "current.log.1", "current.log.2"]
    assert all(path.stat().st_size <= 1024 for path in bench.state.logs("web").glob("current.log*"))
    text = "".join((bench.state.logs("web") / name).read_text() for name in reversed(files))
    lines = text.splitlines()
    assert lines == [f"line {n}" for n in range(400 - len(lines), 400)]


def test_a_line_longer_than_a_log_file_is_split_not_lost(bench: Bench) -> None:
    bench.start(sys.executable, "-c", "print('x' * 2500)", logs=Logs(1024, 5))
    bench.exit()
    paths = sorted(bench.state.logs("web").glob("current.log*"), reverse=True)
    assert "".join(path.read_text() for path in paths) == "x" * 2500 + "\n"


def test_logs_without_old_ones_start_over(bench: Bench) -> None:
    bench.sh("i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done", logs=Logs(1024, 0))
    bench.exit()
    assert [path.name for path in bench.state.logs("web").glob("current.log*")] == ["current.log"]
    assert bench.log().endswith("line 399\n")


def test_a_log_that_cannot_be_written_does_not_end_the_workload(bench: Bench) -> None:
    identity = bench.sh("while [ ! -e ../go ]; do sleep 0.02; done; echo lost; exit 4")
    shutil.rmtree(bench.state.logs("web"))
    (bench.state.directory("web") / "go").touch()
    assert bench.exit().code == 4
    assert identity.instance == "web"


def test_a_workload_runs_as_its_user_with_its_groups_and_no_more(bench: Bench) -> None:
    script = "id -u; id -g; touch here && echo wrote; cat ../process.json"
    if os.geteuid() != 0:
        with pytest.raises(StartFailed, match="only an agent that runs as root"):
            bench.sh(script, user="nobody")
        return
    nobody = pwd.getpwnam("nobody")
    for parent in [bench.state.root, *bench.state.root.parents]:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    bench.sh(script, user="nobody")
    bench.exit()
    lines = bench.log().splitlines()
    assert lines[:3] == [str(nobody.pw_uid), str(nobody.pw_gid), "wrote"]
    assert not any(SHA in line for line in lines)


def test_the_shim_needs_little_memory(bench: Bench) -> None:
    identity = bench.sh("sleep 100")
    status = Path(f"/proc/{identity.shim}/status").read_text()
    own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    assert int(own.split()[1]) < 6 * 1024, own


def test_the_shim_imports_nothing_of_ours() -> None:
    code = f"import runpy, sys; runpy.run_path({str(SHIM)!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert {"farmd", "store", "logging", "json", "ctypes"}.isdisjoint(done.stdout.split())


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def test_r26_a_shim_that_holds_no_lock_yet_is_waited_for(bench: Bench) -> None:
    """An agent that was killed in the middle of a start may leave one behind."""
    manifest = Manifest(id="web", command=["sleep", "1000"])
    launch = Launch(instance="web", sha=SHA, manifest=manifest, ports={}, start="s1", started=1.0)
    spec = bench.processes.ready(launch)
    words = shims.command(bench.state.directory("web"))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as shim:
        try:
            until(lambda: "web" in process.shims(bench.state.instances))
            bench.processes = Processes(bench.state, "n1", bench.environ, SystemClock(), Users(share=True))
            looking = asyncio.create_task(bench.processes.look())
            await asyncio.sleep(0)
            assert shim.stdin is not None
            shim.stdin.write(spec)
            shim.stdin.close()
            await looking
            found = bench.processes.find("web")
            assert found is not None
            bench.started.append(found)
            bench.processes.send(found, signal.SIGKILL)
        except BaseException:
            shim.kill()  # else the end of its block would wait for it and hide the failure
            raise


def test_r43_the_output_that_people_are_shown_has_no_secret(bench: Bench) -> None:
    script = f"echo the password is $PASSWORD; echo {'x' * 790}; exit 4"
    manifest = Manifest(id="web", command=["true"], init=[Init(command=["/bin/sh", "-c", script])])
    opened = Opened({"PASSWORD": "hunter" * 20}, {"key": b"file-value"})
    launch = Launch(
        instance="web", sha=SHA, manifest=manifest, ports={}, start="s1", started=time.time(), secrets=opened
    )
    identity = bench.processes.launch(launch)
    bench.started.append(identity)
    assert bench.exit().code == 4
    text = (bench.state.directory("web") / "stages.json").read_text()
    assert "hunter" not in text
    assert "xxxx" in text
    assert "hunter" in bench.log()  # the log is for those who may read it
