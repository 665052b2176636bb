"""A real Consul with access control, prepared by the very commands that the manual gives.

Everybody in it has the token of their role alone; ``owner`` is the test itself, which may do anything.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from farmd.runtime.clock import SystemIds
from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.keys import Keys
from store.registration import register_cluster, register_node
from tests import servers
from tests.binaries import binary
from tests.farmctl import ROOT, Farmctl
from tests.fleet import client_of

OWNER = "00000000-1111-2222-3333-444444444444"
NODES = ("node-1", "node-2")
PREFIX = "farmd/"


def manual() -> tuple[str, str]:
    """The shell blocks of the manual: everybody's policies and tokens, and those of one node."""
    text = (ROOT / "docs/operations.md").read_text()
    section = text.partition("## Access control\n")[2].partition("\n## ")[0]
    everybody, node = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return everybody, node


@dataclass
class AsRole(Farmctl):
    """farmctl with the token of one file, in this process."""

    token_file: Path = Path()
    inside: bool = True

    @property
    def env(self) -> dict[str, str]:
        """As for everybody, and the token's file."""
        return {**super().env, "CONSUL_HTTP_TOKEN_FILE": str(self.token_file)}


@dataclass(frozen=True)
class Guarded:
    """The server, and the folder with one file a token."""

    server: servers.ConsulServer
    folder: Path

    def token_file(self, role: str) -> Path:
        """Where the token of a role is: ``farm``, ``agent-node-1``, ``operator``, …"""
        return self.folder / f"{role}.token"

    def client(self, role: str) -> ConsulClient:
        """A client with the token of a role, or with the owner's."""
        token = OWNER if role == "owner" else self.token_file(role).read_text().strip()
        return client_of(self.server.address, token)

    def farmctl(self, role: str) -> AsRole:
        """farmctl with the token of a role."""
        return AsRole(self.server.address, PREFIX, token_file=self.token_file(role))

    def shell(self, script: str) -> str:
        """Run shell commands as the owner, where the policies are at hand as in a checkout."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env={
                "PATH": f"{binary('consul').parent}:{os.environ['PATH']}",
                "CONSUL_HTTP_ADDR": self.server.address,
                "CONSUL_HTTP_TOKEN": OWNER,
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    def new_token(self, role: str, *policies: str) -> str:
        """Write one more token with these policies into the file of a role; its accessor."""
        names = " ".join(f"-policy-name {policy}" for policy in policies)
        told = self.shell(f"consul acl token create {names}")
        found = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        beside = self.folder / "beside"
        beside.write_text(found["SecretID"].strip())
        beside.rename(self.token_file(role))
        return found["AccessorID"].strip()

    async def world(self) -> dict[str, Entry]:
        """All that there is, with the indexes that any write would move."""
        client = self.client("owner")
        try:
            return {raw.key: Entry.of(raw) for raw in (await client.list("", mode="consistent")).items}
        finally:
            await client.close()


def follow(guarded: Guarded, block: str, **values: str) -> None:
    """Do what a shell block of the manual says with these variables; its farmctl runs in this process."""
    owner = Farmctl(guarded.server.address, PREFIX, inside=True, variables={"CONSUL_HTTP_TOKEN": OWNER})
    for name, value in values.items():
        block = block.replace(f"${name}", value)
    for words, file in re.findall(r"^farmctl (.+) > (\S+)$", block, re.MULTILINE):
        (guarded.folder / file).write_text(owner.ok(*words.split()).out)


@contextmanager
def guarded_consul(
    folder: Path, *, key_list_policy: bool, more: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Guarded]:
    """A server that denies by default, with the manual's policies and tokens for two nodes.

    ``more`` is the rest of its configuration.
    """
    acl = {
        "enabled": True,
        "default_policy": "deny",
        "enable_key_list_policy": key_list_policy,
        "tokens": {"master": OWNER},
    }
    (folder / "acl").symlink_to(ROOT / "acl")
    with servers.ConsulServer(dev=True, config={"acl": acl, **more}, node=NODES[0]) as server:
        guarded = Guarded(server, folder)
        everybody, node = manual()
        follow(guarded, everybody)
        for name in NODES:
            follow(guarded, node, node=name, consul_node=NODES[0])
        for role in ("agents", "exec", "repair"):
            follow(guarded, f"farmctl token consul {role} > {role}.token")
        yield guarded


def asked(guarded: Guarded, what: Callable[[ConsulClient], Awaitable[object]], role: str = "owner") -> None:
    """Ask with the token of a role."""

    async def ask() -> None:
        client = guarded.client(role)
        try:
            await what(client)
        finally:
            await client.close()

    asyncio.run(ask())


def put(guarded: Guarded, key: str, record: msgspec.Struct) -> None:
    """Write a record as the owner."""
    asked(guarded, lambda client: client.put(key, codec.encode(record)))


def world(guarded: Guarded) -> dict[str, Entry]:
    """``Guarded.world`` for tests that have no loop."""
    return asyncio.run(guarded.world())


def registered(guarded: Guarded, *nodes: str) -> None:
    """A cluster with nodes, and nobody at work."""
    asked(guarded, lambda client: register_cluster(client, Keys(), SystemIds()), "farm")
    for node in nodes:
        asked(guarded, lambda client, node=node: register_node(client, Keys(), node))
