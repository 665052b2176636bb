"""The processes of ``docker-compose.yml`` without containers: its servers of Consul, farms and agents.

Their words and variables are those of the file; only folders, addresses and ports are this machine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.binaries import binary
from tests.farmctl import ROOT, Farmctl
from tests.ports import free_ports, pod_ports
from tests.processes import Program
from tests.server_process import ServerProcess
from tests.servers import leader_of

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SERVERS = tuple(name for name in SERVICES if name.startswith("consul-"))


class Member(ServerProcess):
    """One of the servers; ``serf`` are the ports by which they find one another."""

    name = "consul"

    def __init__(self, service: str, serf: dict[str, int]) -> None:
        super().__init__()
        self.service, self._serf = service, serf
        http, server = free_ports(2)
        self.address = f"127.0.0.1:{http}"
        self._ports = {"http": http, "server": server, "serf-lan": serf[service], "serf-wan": -1, "dns": -1}

    def command(self) -> list[str]:
        """The file's words, with this machine's folders and addresses."""
        here = {
            "-client=0.0.0.0": "-client=127.0.0.1",
            "-data-dir=/consul/data": f"-data-dir={self.folder / 'data'}",
            "-config-file=/etc/consul.hcl": f"-config-file={ROOT / 'acl/consul-server.hcl'}",
            **{f"-retry-join={name}": f"-retry-join=127.0.0.1:{port}" for name, port in self._serf.items()},
        }
        said = SERVICES[self.service]
        _, *words = [*said["entrypoint"], *said["command"]]
        ports = [f"-{name}-port={port}" for name, port in self._ports.items()]
        return [str(binary("consul")), *(here.get(word, word) for word in words), "-bind=127.0.0.1", *ports]

    def ready(self) -> bool:
        """Whether it names a leader."""
        return leader_of(self.address) != ""

    @property
    def leads(self) -> bool:
        """Whether it is the leader."""
        return leader_of(self.address) == f"127.0.0.1:{self._ports['server']}"


class Fleet:
    """The servers, and the farms and agents with their tokens, by the names of their services."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        serf = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self.servers = {name: Member(name, serf) for name in SERVERS}
        self.programs: dict[str, Program] = {}

    def begin(self) -> None:
        """Start everything; the servers have their policies, and all processes are ready."""
        for server in self.servers.values():
            self._stack.callback(server.close)
            server.launch()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Member.await_ready, self.servers.values()))
        script, policies, tokens, *_ = SERVICES["acl"]["entrypoint"][1:]
        assert (script, policies, tokens) == ("/acl/bootstrap.py", "/acl", "/run/tokens")
        addresses = [server.address for server in self.servers.values()]
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "acl/bootstrap.py"),
                str(ROOT / "acl"),
                str(self._tokens),
                *addresses,
            ],
            env={**os.environ, **SERVICES["acl"]["environment"]},
            check=True,
            capture_output=True,
        )
        for name in SERVICES:
            if name.startswith(("farm-", "agent-")):
                self.programs[name] = self._stack.enter_context(self._program(name))
        for program in self.programs.values():
            program.wait_for("process.ready")

    @property
    def _tokens(self) -> Path:
        return self.folder / "tokens"

    def _program(self, name: str) -> Program:
        said = {**SERVICES[name]["environment"]}
        said["CONSUL_HTTP_ADDR"] = self.servers[self.server_of(name)].address
        said["FARMD_STORE__TOKEN_FILE"] = said["FARMD_STORE__TOKEN_FILE"].replace(
            "/run/tokens", str(self._tokens)
        )
        for elsewhere in ("FARMD_WEB__BIND", "FARMD_WEB__ADVERTISE", "FARMD_WEB__READ"):
            said.pop(elsewhere, None)
        folder = self.folder / name
        folder.mkdir()
        more = {
            "FARMD_AGENT__STATE_DIR": str(folder / "state"),
            "FARMD_AGENT__PORT_RANGE": "{}-{}".format(*pod_ports()),
            "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
            "FARMD_AGENT__SHARE_USER": "true",
            "FARMD_LOG__FORMAT": "json",
        }
        return Program(*SERVICES[name]["command"], "--port", "0", folder=folder, **said, **more)

    def server_of(self, name: str) -> str:
        """The server that a farm or an agent asks."""
        return str(SERVICES[name]["environment"]["CONSUL_HTTP_ADDR"].split("/")[2].partition(":")[0])

    @property
    def leader(self) -> Member:
        """The server that leads now."""
        return next(server for server in self.servers.values() if server.leads)

    def ctl(self, server: Member) -> Farmctl:
        """farmctl with the operator's token, at one of the servers."""
        token = str(self._tokens / "admin" / "operator")
        return Farmctl(server.address, inside=True, variables={"CONSUL_HTTP_TOKEN_FILE": token})

    @cached_property
    def token(self) -> str:
        """The token that may do anything."""
        return (self._tokens / "admin" / "management").read_text()


@contextmanager
def composed_servers(folder: Path) -> Iterator[Fleet]:
    """The fleet, until the end of the block; no workload outlives it."""
    with ExitStack() as stack:
        fleet = Fleet(folder, stack)
        fleet.begin()
        try:
            yield fleet
        finally:
            for name, program in fleet.programs.items():
                if name.startswith("agent-"):
                    program.ends(15)
