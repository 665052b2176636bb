"""The fleet of a soak: a durable Consul; farms and agents as processes, each behind its own proxy."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from store import registration
from store.consul.client import ConsulClient
from store.entry import Entry
from store.keys import Keys
from tests.consul_group import Balancer, ConsulGroup
from tests.fault.invariants import Dump
from tests.fleet import CLOCK, client_of
from tests.frozen_disk import FrozenDisk
from tests.proxy import Proxy
from tests.small_disk import SmallDisk
from tests.soak import processes
from tests.soak.gates import Smoke, smoke
from tests.soak.part import Part

ZONES = "abc"
TTL = 10
LOST_AFTER = 25.0
DISK_MEGABYTES = 16
# Nobody else may mount a disk that can be frozen.
DISK = FrozenDisk if os.geteuid() == 0 else SmallDisk


@dataclass
class Fleet:
    """Everything that runs. ``client`` talks to Consul itself, never through a proxy."""

    consul: ConsulGroup
    client: ConsulClient
    keys: Keys
    smoke: Smoke
    farms: dict[str, Part] = field(default_factory=dict)
    agents: dict[str, Part] = field(default_factory=dict)
    disks: dict[str, SmallDisk] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> list[Part]:
        return [*self.farms.values(), *self.agents.values()]

    @property
    def lasting(self) -> list[Part]:
        """The first farm and the first agent, which run from the beginning to the end."""
        return [next(iter(self.farms.values())), next(iter(self.agents.values()))]

    @property
    def call(self) -> Call:
        """A person at the command line."""
        return Call(self.client, self.keys, CLOCK, SystemIds(), "user/soak@desk", "soak")

    def state(self, node: str) -> Path:
        """The state folder of an agent, on a disk of its own."""
        return self.disks[node].path / "state"

    def workloads(self) -> list[processes.Workload]:
        return processes.workloads(self.agents)

    async def dump(self) -> Dump:
        """The whole cluster in one consistent read."""
        page = await self.client.list(self.keys.prefix, mode="consistent")
        return Dump(self.keys, {raw.key: Entry.of(raw) for raw in page.items})

    async def sessions(self) -> list[str]:
        """The names of all sessions that Consul has, sorted."""

        def ask() -> list[dict[str, Any]]:
            with urllib.request.urlopen(f"{self.consul.up[0].url}/v1/session/list", timeout=10) as answer:
                found: list[dict[str, Any]] = json.load(answer)
                return found

        return sorted(each["Name"] for each in await asyncio.to_thread(ask))

    @contextmanager
    def trouble(self, *parts: Part) -> Iterator[None]:
        """A fault of these processes, or of all where none is named."""
        with ExitStack() as stack:
            for part in parts or self.parts:
                stack.enter_context(part.trouble())
            yield


@asynccontextmanager
async def fleet_of(farms: int, agents: int, folder: Path, servers: int = 1) -> AsyncIterator[Fleet]:
    """A fleet whose processes have all been started; none of them is left afterwards.

    Its processes ask the servers of Consul by turns, each its own one.
    """
    token = secrets.token_hex(3)
    async with AsyncExitStack() as stack:
        consul = stack.enter_context(ConsulGroup(servers))
        client = client_of((await stack.enter_async_context(Balancer(consul.up, each_request=True))).address)
        stack.push_async_callback(client.close)
        asked = await stack.enter_async_context(smoke(random.Random(token)))
        fleet = Fleet(consul, client, Keys(f"soak-{token}/"), asked)
        await registration.register_cluster(client, fleet.keys, SystemIds())
        stack.push_async_callback(_end, fleet)
        for number in range(1, farms + 1):
            name = f"farm-{number}"
            proxy = await stack.enter_async_context(Proxy(consul.servers[number % servers].address))
            fleet.farms[name] = Part("run", name, proxy, folder, _farm(fleet, name))
        for number in range(1, agents + 1):
            node = f"n{number}-{token}"
            (folder / node).mkdir()
            fleet.disks[node] = stack.enter_context(DISK(folder / node, DISK_MEGABYTES))
            fleet.zones[node] = ZONES[number % len(ZONES)]
            proxy = await stack.enter_async_context(Proxy(consul.servers[number % servers].address))
            fleet.agents[node] = Part("agent", node, proxy, folder, _agent(fleet, node))
        for part in fleet.parts:
            part.start()
        yield fleet


def _farm(fleet: Fleet, name: str) -> dict[str, str]:
    return {
        "FARMD_STORE__PREFIX": fleet.keys.prefix,
        "FARMD_FARM__NAME": name,
        "FARMD_FARM__TTL": str(TTL),
        "FARMD_FARM__LOST_AFTER": str(LOST_AFTER),
        "FARMD_WEB__FARM_PORT": "0",
    }


def _agent(fleet: Fleet, node: str) -> dict[str, str]:
    return {
        "FARMD_STORE__PREFIX": fleet.keys.prefix,
        "FARMD_AGENT__NODE": node,
        "FARMD_AGENT__SHARE_USER": "true",
        "FARMD_AGENT__STATE_DIR": str(fleet.state(node)),
        "FARMD_AGENT__LABELS": f"zone={fleet.zones[node]}",
        "FARMD_AGENT__TTL": str(TTL),
        "FARMD_WEB__AGENT_PORT": "0",
    }


async def _end(fleet: Fleet) -> None:
    """End the processes, and the workloads that outlive them by design."""
    for part in fleet.parts:
        await part.end()
    until = time.monotonic() + 10
    while (left := fleet.workloads()) and time.monotonic() < until:
        processes.end(left)
        await asyncio.sleep(0.1)
