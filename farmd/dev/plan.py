"""The processes of a one-machine cluster (store, farms, agents), and each one's configuration file."""

from __future__ import annotations

import json
import re
import socket
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import farmd

# Ports for the pods of fleets on one machine: no two processes that ask here get the same ones.
#
# The ports of agents on one loopback address must differ, also where several fleets run side by side. A
# block of ports belongs to the process that has bound its first port, and is free again when that process
# ends, however it ends. All blocks lie below the ports that Linux gives to outgoing connections (from
# 32768).

SIZE = 100
BLOCKS = range(20000, 32000, SIZE)


class NoPorts(Exception):
    """All blocks of ports are taken; one line with where."""


def take_block(blocks: range = BLOCKS) -> tuple[int, socket.socket]:
    """The first port of a free block, and the socket that keeps others out of the block.

    Raises:
        NoPorts: every block is taken.
    """
    for first in blocks:
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        return first, guard
    raise NoPorts(f"every block of ports from {blocks.start} to {blocks.stop} is taken")


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster in ``folder``; with ``keep`` the folder and the store's data are kept at the end.

    ``config`` is a file of farmd's whose values the processes have, too; ``engine`` is the address of the
    engine that runs the agents' containers, empty for none.
    """

    folder: str
    farms: int = 2
    agents: int = 5
    keep: bool = False
    http_addr: str = "127.0.0.1:0"
    log_level: str = "info"
    config: str = ""
    engine: str = ""

    def text(self) -> str:
        """The plan as the keeper's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ClusterLayout:
        """The plan of a keeper's argument."""
        return cls(**json.loads(text))

    def farm_names(self) -> list[str]:
        """``farm-1``, ``farm-2``, …"""
        return [f"farm-{number}" for number in range(1, self.farms + 1)]

    def node_names(self) -> list[str]:
        """``node-1``, ``node-2``, …"""
        return [f"node-{number}" for number in range(1, self.agents + 1)]

    def path(self, *parts: str) -> Path:
        """A path in the cluster's folder."""
        return Path(self.folder, *parts)

    def store_command(self) -> list[str]:
        """The command that starts the store."""
        data = ["--data-dir", str(self.path("store"))] if self.keep else []
        return [sys.executable, "-m", "store.embedded", "--http-addr", self.http_addr, *data]

    def farm_command(self, name: str, store: str) -> list[str]:
        """The command that starts a farm; writes the farm's configuration file."""
        return self._command("run", name, {"farm": {"name": name}}, "farm_port", store)

    def agent_command(self, name: str, store: str, block: int) -> list[str]:
        """The command that starts an agent; writes the agent's configuration file.

        ``block`` is the first port of the agent's block, which only keeps others out.
        """
        place = self.node_names().index(name)
        section = {
            "node": name,
            "state_dir": str(self.path(name)),
            "labels": {"zone": "abc"[place % 3]},
            "port_range": f"{block + 1}-{block + SIZE - 1}",
            "stop_workloads_on_exit": True,
            # Of one machine's cluster the person who started it is the only user.
            "share_user": True,
            "exec": True,
            "allow": ["processes", "local-sources"],  # artifacts may come from a server of this machine
            **({"engine": self.engine} if self.engine else {}),
        }
        return self._command("agent", name, {"agent": section}, "agent_port", store)

    def _command(
        self, verb: str, name: str, own: dict[str, dict[str, object]], port: str, store: str
    ) -> list[str]:
        sections: dict[str, dict[str, object]] = {
            **own,
            "store": {"address": store},
            "log": {"level": self.log_level, "format": "json"},
            "web": {port: 0, "port_file": str(self.path(f"{name}.port"))},
        }
        said = tomllib.loads(Path(self.config).read_text()) if self.config else {}
        merged = {each: {**said.get(each, {}), **sections.get(each, {})} for each in {**said, **sections}}
        file = self.path(f"{name}.toml")
        file.touch(0o600)  # the options of the person may hold credentials
        file.write_text("".join(_toml(section, values) for section, values in merged.items()))
        return [sys.executable, "-m", "farmd", verb, "--config", str(file)]


_FOREIGN = ("CONSUL_", "KUBECONFIG", "KUBERNETES_")
_OWN = re.compile(
    "FARMD_(CONFIG|STORE__.*|FARM__NAME|AGENT__(NODE|STATE_DIR|LABELS|PORT_RANGE|STOP_WORKLOADS_ON_EXIT)"
    "|LOG__(LEVEL|FORMAT)|WEB__(FARM_PORT|AGENT_PORT|PORT_FILE))"
)


def ignored(inherited: Mapping[str, str]) -> list[str]:
    """The variables of farmd's configuration that a development cluster sets by itself."""
    return sorted(name for name in inherited if _OWN.fullmatch(name))


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The processes' environment: none of Consul and Kubernetes; of farmd the configuration that the cluster
    does not set by itself; this source on the path.
    """
    root = str(Path(farmd.__file__).resolve().parents[1])
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_FOREIGN)
        and (not name.startswith("FARMD_") or ("__" in name and not _OWN.fullmatch(name)))
    }
    paths = [root, *kept.get("PYTHONPATH", "").split(":")]
    return {**kept, "PYTHONPATH": ":".join(path for path in paths if path)}


def _toml(section: str, values: Mapping[str, object]) -> str:
    lines = [f"[{section}]", *(f"{json.dumps(key)} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n\n"


def _value(value: object) -> str:
    """A value as TOML, in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
