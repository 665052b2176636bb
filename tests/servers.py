"""Real Consul for tests, bench and CI, on free ports.

A live cluster is never touched: ``CONSUL_HTTP_ADDR`` counts only together with
``FARMD_TEST_CONSUL=external``, and only for cases that need no server of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import reaper
from tests.binaries import binary
from tests.ports import free_ports

START_SECONDS = 30.0
STOP_SECONDS = 10.0


class NoConsul(Exception):
    """The environment offers a server and does not say where; the message says what is missing."""


class NotStarted(Exception):
    """A server did not become ready; the message holds the end of its log."""


def external() -> str | None:
    """``host:port`` of the server that the environment offers for destruction, or None."""
    if os.environ.get("FARMD_TEST_CONSUL") != "external":
        return None
    address = os.environ.get("CONSUL_HTTP_ADDR", "")
    if not address:
        raise NoConsul("FARMD_TEST_CONSUL=external, but CONSUL_HTTP_ADDR is not set")
    return address.removeprefix("http://")


class ConsulServer:
    """One real Consul server on loopback, as a context manager.

    ``dev=True`` keeps all in memory and starts in 0.2 s. Otherwise it is durable: a data directory
    of its own, fsync, ``raft_multiplier`` 1; ``kill`` and ``restart`` keep data and ports.

    Args:
        dev: in memory (contract cases) instead of durable (integration, fault, bench).
        http_max_conns_per_client: Consul's limit per client address (its own default is 200).
        config: more of Consul's configuration, merged on top (ACLs, limits).
        node: its name, which its sessions belong to.
    """

    def __init__(
        self,
        dev: bool = True,
        *,
        http_max_conns_per_client: int = 200,
        config: dict[str, Any] | None = None,
        node: str = "farmd-test",
    ) -> None:
        self.dev = dev
        self._node = node
        self.folder = Path(tempfile.mkdtemp(prefix="farmd-consul-"))
        self.log = self.folder / "consul.log"
        self.host = "127.0.0.1"
        self.http_port, self.server_port, self.serf_port = free_ports(3)
        self._config: dict[str, Any] = {
            "performance": {"raft_multiplier": 1},
            "limits": {"http_max_conns_per_client": http_max_conns_per_client},
            "disable_update_check": True,
            "leave_on_terminate": False,
        } | (config or {})
        self._process: subprocess.Popen[bytes] | None = None
        _live.add(self)

    @property
    def address(self) -> str:
        """``host:port`` of the HTTP API, as ``CONSUL_HTTP_ADDR`` wants it."""
        return f"{self.host}:{self.http_port}"

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        """The running process."""
        if self._process is None:
            raise NotStarted("the server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start and wait for a leader; returns when writes work.

        Raises:
            NotStarted: with the end of the log.
        """
        (self.folder / "config.json").write_text(json.dumps(self._config))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        reaper.started(self._process.pid, self.folder)
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NotStarted(f"consul did not become ready:\n{self.tail()}")
            time.sleep(0.02)

    def ready(self) -> bool:
        """Whether the server names a leader and has registered itself, without which it opens no session."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/status/leader", timeout=2) as answer:
                if len(answer.read()) <= 4:
                    return False
            token = self._config.get("acl", {}).get("tokens", {}).get("master", "")
            nodes = urllib.request.Request(f"{self.url}/v1/catalog/nodes", headers={"X-Consul-Token": token})
            with urllib.request.urlopen(nodes, timeout=2) as answer:
                return len(json.loads(answer.read())) > 0
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        """Terminate cleanly (SIGTERM, no leave); data stays until ``close``."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; data stays until ``close``."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: the server answers nothing, its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start again on the same ports; a durable server keeps its data."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Throw the data of a stopped server away, as an operator's mistake would."""
        if self._process is not None:
            raise NotStarted("stop the server before wiping it")
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def snapshot(self) -> bytes:
        """All data of the server, as ``consul snapshot save`` has it."""
        with urllib.request.urlopen(f"{self.url}/v1/snapshot", timeout=START_SECONDS) as answer:
            saved: bytes = answer.read()
            return saved

    def restore(self, snapshot: bytes) -> None:
        """Go back to a snapshot while everything runs, as ``consul snapshot restore`` does."""
        request = urllib.request.Request(f"{self.url}/v1/snapshot", data=snapshot, method="PUT")
        with urllib.request.urlopen(request, timeout=START_SECONDS):
            pass

    def close(self) -> None:
        """Kill what runs and remove the folder; may be called twice."""
        if self._process is not None:
            self.kill()
        _live.discard(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def tail(self, lines: int = 20) -> str:
        """The end of the server's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> ConsulServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self) -> list[str]:
        mode = ["-dev"] if self.dev else ["-server", "-bootstrap-expect", "1"]
        data = [] if self.dev else ["-data-dir", str(self.folder / "data")]
        ports = {
            "-http-port": self.http_port,
            "-server-port": self.server_port,
            "-serf-lan-port": self.serf_port,
            "-serf-wan-port": -1,
            "-dns-port": -1,
            "-grpc-port": -1,
        }
        listed = [word for flag, port in ports.items() for word in (flag, str(port))]
        where = ["-bind", self.host, "-client", self.host, "-node", self._node]
        configuration = ["-config-file", str(self.folder / "config.json")]
        return [str(binary("consul")), "agent", *mode, *data, *where, *listed, *configuration]

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reaper.reaped(process.pid)


_live: weakref.WeakSet[ConsulServer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_live):
        server.close()
