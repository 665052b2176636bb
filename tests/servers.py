"""Real Consul for tests, bench and CI, on free ports.

A live cluster is never touched: ``CONSUL_HTTP_ADDR`` counts only together with
``FARMD_TEST_CONSUL=external``, and only for cases that need no server of their own. The same variable names
another version than 1.8, such as ``1.14``, for all servers of a run.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.binaries import binary
from tests.ports import free_ports
from tests.server_process import NotStarted, ServerProcess


class NoConsul(Exception):
    """The environment offers a server and does not say where; the message says what is missing."""


PROGRAMS = {"1.8": "consul", "1.14": "consul-1.14"}
"""The program of each version that tests know."""


def of_this_run() -> str:
    """The version of Consul whose answers this run expects.

    Raises:
        NoConsul: the environment names one that tests do not know.
    """
    named = os.environ.get("FARMD_TEST_CONSUL") or "1.8"
    if named == "external":
        return "1.8"
    if named not in PROGRAMS:
        raise NoConsul(f"FARMD_TEST_CONSUL: found {named!r}, expected external, {', '.join(PROGRAMS)}")
    return named


def external() -> str | None:
    """``host:port`` of the server that the environment offers for destruction, or None."""
    if os.environ.get("FARMD_TEST_CONSUL") != "external":
        return None
    address = os.environ.get("CONSUL_HTTP_ADDR", "")
    if not address:
        raise NoConsul("FARMD_TEST_CONSUL=external, but CONSUL_HTTP_ADDR is not set")
    return address.removeprefix("http://")


class ConsulServer(ServerProcess):
    """One real Consul server on loopback, as a context manager.

    ``dev=True`` keeps all in memory and starts in 0.2 s. Otherwise it is durable: a data directory
    of its own, fsync, ``raft_multiplier`` 1; ``kill`` and ``restart`` keep data and ports.

    Args:
        dev: in memory (contract cases) instead of durable (integration, fault, bench).
        http_max_conns_per_client: Consul's limit per client address (its own default is 200).
        config: more of Consul's configuration, merged on top (ACLs, limits).
        node: its name, which its sessions belong to.
        host: the address that it listens on.
        version: that of its program; None: that of this run.
        dns: whether it answers DNS, on the port of that name.
        wan: whether servers of other datacenters reach it, on the port ``wan_port``.
        peers: where all servers of its cluster find one another, itself among them; empty: it is alone.
    """

    name = "consul"
    start_seconds = 30.0
    stop_seconds = 10.0

    def __init__(
        self,
        dev: bool = True,
        *,
        http_max_conns_per_client: int = 200,
        config: dict[str, Any] | None = None,
        node: str = "farmd-test",
        host: str = "127.0.0.1",
        peers: Sequence[str] = (),
        version: str | None = None,
        dns: bool = False,
        wan: bool = False,
    ) -> None:
        super().__init__()
        self._version = version or of_this_run()
        self.dev = dev
        self._node = node
        self.host = host
        self._peers = peers
        self.http_port, self.server_port, self.serf_port = free_ports(3, host)
        self.wan_port = free_ports(1, host)[0] if wan else -1
        self.dns_port = free_ports(1, host)[0] if dns else -1
        self._config: dict[str, Any] = {
            "performance": {"raft_multiplier": 1},
            "limits": {"http_max_conns_per_client": http_max_conns_per_client},
            "disable_update_check": True,
            "leave_on_terminate": False,
        } | (config or {})
        (self.folder / "config.json").write_text(json.dumps(self._config))

    @property
    def address(self) -> str:
        """``host:port`` of the HTTP API, as ``CONSUL_HTTP_ADDR`` wants it."""
        return f"{self.host}:{self.http_port}"

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.address}"

    def ready(self) -> bool:
        """Whether the server names a leader and has registered itself, without which it opens no session.

        A leader registers itself by name alone; the server adds its meta 0.2 s later, which moves the indexes
        of the catalogue under a case that compares them. With ACLs it may lack the right to.
        """
        self.awaited = "it names no leader"
        if not leader_of(self.address):
            return False
        self.awaited = "it has not registered itself"
        try:
            token = self._config.get("acl", {}).get("tokens", {}).get("master", "")
            nodes = urllib.request.Request(f"{self.url}/v1/catalog/nodes", headers={"X-Consul-Token": token})
            with urllib.request.urlopen(nodes, timeout=2) as answer:
                found = json.loads(answer.read())
                return bool(found) and ("acl" in self._config or all(each["Meta"] for each in found))
        except OSError as error:
            self.awaited = f"its nodes: {error}"
            return False

    def wipe(self) -> None:
        """Throw the data of a stopped server away, as an operator's mistake would."""
        if self._process is not None:
            raise NotStarted("stop the server before wiping it")
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def leave(self) -> None:
        """Have it leave its cluster and the other datacenters, as ``consul leave`` does, and end."""
        request = urllib.request.Request(f"{self.url}/v1/agent/leave", method="PUT")
        with urllib.request.urlopen(request, timeout=self.start_seconds):
            pass

    def snapshot(self) -> bytes:
        """All data of the server, as ``consul snapshot save`` has it."""
        with urllib.request.urlopen(f"{self.url}/v1/snapshot", timeout=self.start_seconds) as answer:
            saved: bytes = answer.read()
            return saved

    def restore(self, snapshot: bytes) -> None:
        """Go back to a snapshot while everything runs, as ``consul snapshot restore`` does."""
        request = urllib.request.Request(f"{self.url}/v1/snapshot", data=snapshot, method="PUT")
        with urllib.request.urlopen(request, timeout=self.start_seconds):
            pass

    def command(self) -> list[str]:
        expected = str(max(1, len(self._peers)))
        mode = ["-dev"] if self.dev else ["-server", "-bootstrap-expect", expected]
        mode += [f"-retry-join={peer}" for peer in self._peers]
        data = [] if self.dev else ["-data-dir", str(self.folder / "data")]
        ports = {
            "-http-port": self.http_port,
            "-server-port": self.server_port,
            "-serf-lan-port": self.serf_port,
            "-serf-wan-port": self.wan_port,
            "-dns-port": self.dns_port,
            "-grpc-port": -1,
        }
        if self._version != "1.8":
            ports["-grpc-tls-port"] = -1
        listed = [word for flag, port in ports.items() for word in (flag, str(port))]
        where = ["-bind", self.host, "-client", self.host, "-node", self._node]
        configuration = ["-config-file", str(self.folder / "config.json")]
        return [str(binary(PROGRAMS[self._version])), "agent", *mode, *data, *where, *listed, *configuration]


def leader_of(address: str) -> str:
    """The leader that a server names, as ``host:port`` of servers; empty: none, or it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/v1/status/leader", timeout=2) as answer:
            return str(json.loads(answer.read()))
    except OSError:
        return ""
