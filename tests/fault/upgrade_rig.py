"""A cluster of processes of two versions on real Consul: farms, agents, farmctl, and workloads that tell on
themselves.

Each workload writes a line when it starts, so that a restart that nobody asked for is seen even if it was
short. What it waits for is a file: a test holds health, and an end, for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store import operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import TransactionRejected
from store.keys import Keys
from store.presence import start_ticks
from tests import earlier
from tests.farmctl import Farmctl, Result
from tests.fault.invariants import Dump, violations
from tests.fleet import eventually, patient_client
from tests.ports import pod_ports
from tests.processes import Program

WITHIN = 120.0
TELL = 'echo "$FARMD_NODE $FARMD_INSTANCE $$" >> "$STARTS"; '
START = TELL + "exec sleep 900"
STUBBORN = TELL + 'trap "" TERM; while [ ! -e "$MAY_END" ]; do sleep 0.1; done'
WARMING = TELL + 'rm -f "$WARM-$FARMD_NODE"; sleep 1; touch "$WARM-$FARMD_NODE"; exec sleep 900'
Place = tuple[str, str]
"""(node, instance)."""


@dataclass(frozen=True)
class Version:
    """One version of the code, and its farmctl."""

    name: str
    tree: Path
    farmctl: Farmctl

    async def ctl(self, *arguments: str, stdin: str = "") -> Result:
        """Run farmctl in a process of its own; it must exit 0."""
        return await asyncio.to_thread(lambda: self.farmctl.ok(*arguments, stdin=stdin))

    async def rows(self, *noun: str) -> dict[str, dict[str, Any]]:
        """What ``list`` says, by name."""
        found = (await self.ctl(*noun, "list", "-o", "json")).json
        return {row["name"]: row for row in found["items"]}


@dataclass
class Fleet:
    """Farms and agents of both versions in one cluster."""

    address: str
    folder: Path
    client: ConsulClient
    keys: Keys = field(default_factory=lambda: Keys(f"t{secrets.token_hex(4)}/"))
    running: dict[str, Program] = field(default_factory=dict)
    everything: list[tuple[str, Program]] = field(default_factory=list)
    earlier: str = earlier.BEFORE_THE_FRAME

    def __post_init__(self) -> None:
        tree = earlier.tree(self.earlier)
        self.old, self.new = self._version("old", tree), self._version("new", earlier.ROOT)

    def _version(self, name: str, tree: Path) -> Version:
        return Version(name, tree, Farmctl(self.address, self.keys.prefix, tree=tree))

    # -- processes -----------------------------------------------------------------------------
    async def start(self, version: Version, role: str, *names: str) -> None:
        """Start farms (``run``) or agents of a version, and wait until they are ready."""
        for name in names:
            folder = self.folder / f"{version.name}-{name}"
            folder.mkdir(exist_ok=True)
            program = Program(
                *(role, "--port", "0"),
                folder=folder,
                tree=version.tree,
                CONSUL_HTTP_ADDR=self.address,
                FARMD_STORE__PREFIX=self.keys.prefix,
                FARMD_FARM__NAME=name,
                FARMD_AGENT__NODE=name,
                FARMD_AGENT__STATE_DIR=str(self.folder / "state" / name),
                FARMD_AGENT__PORT_RANGE="{}-{}".format(*pod_ports()),
                FARMD_FARM__LOST_AFTER="30",
                FARMD_HOUSEKEEPING__INTERVAL="2",
                FARMD_HOUSEKEEPING__MANIFEST_AGE="0",
                **({"FARMD_AGENT__SHARE_USER": "true"} if version is self.new else {}),
            )
            self.running[name] = program
            self.everything.append((folder.name, program.__enter__()))
        for name in names:
            await asyncio.to_thread(self.running[name].wait_for, "process.ready")

    async def end(self, name: str, number: signal.Signals) -> None:
        """End a process, cleanly or not."""
        code = await asyncio.to_thread(self.running.pop(name).ends, number)
        assert code == (-number if number == signal.SIGKILL else 0)

    async def replace(self, version: Version, role: str, name: str, number: signal.Signals) -> None:
        """Run another version of one process under its name."""
        await self.end(name, number)
        await self.start(version, role, name)

    # -- what workloads do -----------------------------------------------------------------------
    def file(self, name: str) -> Path:
        """A file that workloads look at."""
        return self.folder / name

    def pod(self, pod_id: str, script: str = START, *, healthy: str = "", **fields: Any) -> dict[str, Any]:
        """A pod that records its starts; ``healthy`` names the file that its health depends on.

        ``@`` in it stands for the node.
        """
        pod: dict[str, Any] = {
            "id": pod_id,
            "command": ["/bin/sh", "-c", script],
            "env": {
                "STARTS": str(self.file("starts")),
                "MAY_END": str(self.file(f"{pod_id}-may-end")),
                "WARM": str(self.file("warm")),
            },
            "stop": {"grace": 120},
            **fields,
        }
        if healthy:
            path = str(self.file(healthy)).replace("@", "$FARMD_NODE")
            check = {"type": "command", "command": ["/bin/sh", "-c", f'test -e "{path}"']}
            pod["health"] = {**check, "interval": 0.5, "failures": 1}
        return pod

    def starts(self) -> dict[Place, list[int]]:
        """The process ids of all starts that there ever were, by place."""
        found: dict[Place, list[int]] = {}
        for line in self.file("starts").read_text().splitlines():
            node, instance, pid = line.split()
            found.setdefault((node, instance), []).append(int(pid))
        return found

    # -- the store -----------------------------------------------------------------------------
    async def read(self, key: str) -> dict[str, Any] | None:
        """A record as it stands, with what this version does not know of it."""
        entry = await self.client.read(key, mode="consistent")
        return None if entry is None else dict(json.loads(entry.value))

    async def state(self, node: str, **fields: Any) -> None:
        """State something of a node that farmctl has no word for."""

        async def written() -> bool:
            entry = await self.client.read(self.keys.node(node), mode="consistent")
            record, index = ({}, 0) if entry is None else (json.loads(entry.value), entry.modify_index)
            value = json.dumps({**record, **fields}).encode()
            try:
                await self.client.transaction([operations.cas(self.keys.node(node), value, index)])
            except TransactionRejected:
                return False
            return True

        await eventually(written, within=WITHIN, what=f"the record of {node}")

    async def dump(self) -> Dump:
        """The whole cluster in one consistent read."""
        page = await self.client.list(self.keys.prefix, mode="consistent")
        return Dump(self.keys, {raw.key: Entry.of(raw) for raw in page.items})

    async def index(self) -> int:
        """The index of the last change of what is there."""
        return max(each.modify_index for each in (await self.dump()).entries.values())

    async def well(self, context: str) -> Dump:
        """Check every invariant now."""
        dump = await self.dump()
        assert violations(dump) == [], f"{context}\n{self.story()}"
        return dump

    async def version_of(self, key: str) -> str:
        """Which version the process runs that announced itself under a key; empty: none."""
        record = await self.read(key)
        return "" if record is None else "new" if record.get("ticks") else "old"

    async def owners(self, kind: str) -> dict[str, str]:
        """Which version owns each claimed item of a kind, by item."""
        farms = await self.holders(kind)
        return {item: await self.version_of(self.keys.farm(farm)) for item, farm in farms.items()}

    async def holders(self, kind: str) -> dict[str, str]:
        """Which farm owns each claimed item of a kind, by item."""
        found = {}
        page = await self.client.list(f"{self.keys.tree('locks')}{kind}/", mode="consistent")
        for entry in map(Entry.of, page.items):
            _, item, mutation = self.keys.lock_parts(entry.key)
            if not mutation:
                found[item] = entry.value.decode().split("/")[1]
        return found

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> Any:
        """Wait for a condition; its failure tells the end of every log."""
        try:
            return await eventually(condition, within=WITHIN, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        """The end of the log of each process."""
        return "\n".join(f"--- {name}\n{each.tail()}" for name, each in self.everything)

    # -- the end -------------------------------------------------------------------------------
    def close(self) -> None:
        """End every process and every workload."""
        for _, program in self.everything:
            program.__exit__()
        for path in self.folder.glob("state/*/instances/*/process.json"):
            told = json.loads(path.read_bytes())
            for pid, ticks in ((told["pid"], told["ticks"]), (told["shim"], told["shim_ticks"])):
                if start_ticks(pid) == ticks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def fleet_on(address: str, folder: Path, **fields: Any) -> AsyncIterator[Fleet]:
    """A fleet for the length of a ``with`` block; nothing of it runs on afterwards."""
    client = patient_client(address)
    fleet = Fleet(address, folder, client, **fields)
    try:
        yield fleet
    finally:
        fleet.close()
        await client.delete(fleet.keys.prefix, recurse=True)
        await client.close()
