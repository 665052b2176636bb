"""A cluster on this machine for ``farmd dev``, the demo and tests: start, find, kill and end its processes.

The keeper (``keeper.py``) starts and ends the processes. If the keeper itself is killed, this process
inherits the remaining processes and ends them. Linux only, like the agent.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farmd.dev import tree
from farmd.dev.plan import ClusterLayout, environment, ignored
from farmd.process.start import collect_rarely
from farmd.runtime.clock import SystemClock
from store.words import count_of

STOP_SECONDS = 25.0
READY_SECONDS = 20.0


class ClusterFailed(Exception):
    """The cluster did not start or did not end; one line with the reason."""


class LocalCluster:
    """A running cluster as a context manager; at its end no process and no folder is left."""

    def __init__(
        self,
        *,
        farms: int = 2,
        agents: int = 5,
        data_dir: Path | None = None,
        http_addr: str = "127.0.0.1:0",
        log_level: str = "info",
        config: str = "",
        engine: str = "",
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ClusterFailed("farmd dev needs Linux: the agent works with /proc")
        folder = data_dir.resolve() if data_dir is not None else Path(tempfile.mkdtemp(prefix="farmd-dev-"))
        if data_dir is None and os.geteuid() == 0:
            folder.chmod(0o711)  # pods of other users reach their own folders below it, and list nothing
        self.plan = ClusterLayout(
            str(folder), farms, agents, data_dir is not None, http_addr, log_level, config, engine
        )
        self.store = ""
        self.pids: dict[str, int] = {}
        self._clock = SystemClock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        tree.adopt_orphans()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "farmd.dev.keeper", self.plan.text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment(dict(os.environ)),
        )
        deadline = self._clock.mono() + READY_SECONDS
        while (left := deadline - self._clock.mono()) > 0:  # the reason may come behind the end of processes
            for event in self.events(left):
                if event["event"] == "failed":
                    raise ClusterFailed(event["reason"])
                if event["event"] == "started":
                    self.store, self.pids = event["store"], event["pids"]
                    return
        raise ClusterFailed("the cluster's keeper ended without a message")

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """The keeper's messages within that time; empty if there were none."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        if b"\n" not in self._buffer:
            ready, _, _ = select.select([self._keeper.stdout], [], [], seconds)
            if ready:
                piece = os.read(self._keeper.stdout.fileno(), 65536)
                if not piece:
                    raise ClusterFailed("the cluster's keeper has ended")
                self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def url(self, name: str) -> str:
        """The address of a farm's or an agent's HTTP.

        Raises:
            ClusterFailed: it does not listen (yet).
        """
        try:
            return f"http://127.0.0.1:{int(self.plan.path(f'{name}.port').read_text())}"
        except (OSError, ValueError) as error:
            raise ClusterFailed(f"{name} does not listen") from error

    def waiting(self) -> dict[str, str]:
        """Farms and agents that are not ready, each with its own reason."""
        return {name: reason for name in self.pids if name != "store" and (reason := self._reason(name))}

    def wait_ready(self) -> None:
        """Return once every farm and agent is ready.

        Raises:
            ClusterFailed: one is not ready in time, with its reason.
        """
        deadline = self._clock.mono() + READY_SECONDS
        while waiting := self.waiting():
            for event in self.events(tree.LOOK_SECONDS):
                if event["event"] == "ended":
                    name = event["name"]
                    raise ClusterFailed(f"{name} ended with code {event['code']}: {self.last_words(name)}")
            if self._clock.mono() > deadline:
                name, reason = next(iter(waiting.items()))
                raise ClusterFailed(f"{name} is not ready after {READY_SECONDS:.0f} s: {reason}")

    def _reason(self, name: str) -> str:
        try:
            with urllib.request.urlopen(self.url(name) + "/ready", timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return str(json.loads(error.read()).get("reason") or "not ready")
        except (ClusterFailed, OSError) as error:
            return str(error)

    def last_words(self, name: str) -> str:
        """The last line of a process's log."""
        try:
            return self.plan.path("logs", f"{name}.log").read_text().strip().rpartition("\n")[2]
        except OSError:
            return "no log"

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to one process of the cluster; returns its pid."""
        pid = self.pids[name]
        os.kill(pid, number)
        return pid

    def close(self) -> None:
        """End all processes, and check that none is left."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.close()
            try:
                keeper.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
            keeper.stdout.close()
        # If the keeper was killed, its orphans are now children of this process.
        if keeper is not None and keeper.returncode != 0:
            tree.end_all(self._clock, grace=3.0)
        if not self.plan.keep:
            shutil.rmtree(self.plan.folder, ignore_errors=True)


# ``farmd dev``: runs a cluster on this machine until ^C, and prints its address.

EXAMPLE = "examples/hello.yaml"


class _Stopped(Exception):
    """A signal asked the command to end."""


USUAL = ("/run/docker.sock", "/run/podman/podman.sock")


def engine_of(said: str, env: Mapping[str, str]) -> str:
    """The address of the engine for containers: the one that was said, else that of ``DOCKER_HOST`` or of a
    usual socket, if it answers; empty: none does.
    """
    if said:
        return said if "://" in said else f"unix://{said}"
    own = f"/run/user/{os.getuid()}/podman/podman.sock"
    for address in (env.get("DOCKER_HOST", ""), *(f"unix://{path}" for path in (*USUAL, own))):
        if address.startswith("unix://") and _answers(address.removeprefix("unix://")):
            return address
    return ""


def _answers(path: str) -> bool:
    """Whether something listens on a socket."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(1.0)
        return end.connect_ex(path) == 0


def run_dev(
    farms: int, agents: int, data_dir: Path | None, http_addr: str, log_level: str, config: str, engine: str
) -> int:
    """Keep a cluster up until a signal; returns the exit code."""
    collect_rarely()
    said, engine = engine, engine_of(engine, os.environ)
    if said and engine.startswith("unix://") and not _answers(engine.removeprefix("unix://")):
        print(f"farmd dev: --engine: found {said!r}, where no engine answers", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        with LocalCluster(
            farms=farms,
            agents=agents,
            data_dir=data_dir,
            http_addr=http_addr,
            log_level=log_level,
            config=config,
            engine=engine,
        ) as cluster:
            cluster.wait_ready()
            for name in ignored(os.environ):
                print(
                    f"farmd dev: {name}: ignored, because a development cluster sets that itself",
                    file=sys.stderr,
                )
            print("\n".join(greeting(cluster)), flush=True)
            while True:
                for event in cluster.events(1.0):
                    print(f"{event.get('name')} ended with code {event.get('code')}", flush=True)
    except _Stopped:
        left = tree.descendants(os.getpid())
        print(f"stopped; processes left: {len(left)}", flush=True)
        return 1 if left else 0
    except ClusterFailed as error:
        print(f"farmd dev: {error}", file=sys.stderr)
        return 1


def _stop(_number: int, _frame: object) -> None:
    # The first signal ends the cluster; further signals must not interrupt that.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def greeting(cluster: LocalCluster) -> list[str]:
    """The address of a farm's page, and three lines for the user's shell."""
    plan = cluster.plan
    return [
        f"running: {count_of(plan.farms, 'farm')} and {count_of(plan.agents, 'agent')};"
        f" state and logs: {plan.folder}; ^C ends it all",
        f"containers: {plan.engine or 'none: no engine answers (--engine SOCKET)'}",
        *(f"in a browser: {cluster.url(name)}/" for name in plan.farm_names()[:1]),
        "",
        f"export CONSUL_HTTP_ADDR={cluster.store}",
        f"{farmctl()} rc create -f {example()}",
        f"{farmctl()} top",
    ]


def farmctl() -> str:
    """The command that runs farmctl in the current folder."""
    beside = Path(sys.executable).with_name("farmctl")
    if shutil.which("farmctl"):
        return "farmctl"
    return str(beside) if beside.exists() else f"{sys.executable} -m farmd.cli"


def example() -> str:
    """The path of the first example, from the current folder."""
    shipped = Path(__file__).resolve().parents[2] / EXAMPLE
    return EXAMPLE if Path(EXAMPLE).exists() or not shipped.exists() else str(shipped)
