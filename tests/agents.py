"""A cluster of its own for each test, with real agents in this process, and what tests ask them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from farmd.agent.agent import Agent
from farmd.agent.model import AgentConfig, ContainerConfig, Identity, SigningConfig, SystemdConfig
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.keys import is_sentinel
from store.manifests import HealthCheck, Manifest, Port, Restart, Stop
from store.nodes import Agent as Presence
from store.peers import Peer, document
from store.presence import start_ticks
from store.reality import Intent, Reality
from tests.fleet import CLOCK, LIMIT, Cluster, client_of, cluster_on, eventually
from tests.forked import NOTHING, forked_module
from tests.ports import pod_ports

FAST = Restart(initial=0.05, maximum=0.2, reset=60)
SERVER = (
    "import os,http.server as h\n"
    "class H(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        bad = os.path.exists('sick')\n"
    "        self.send_response(500 if bad else 200); self.end_headers()\n"
    "        self.wfile.write(os.environ['FARMD_INSTANCE'].encode())\n"
    "    def log_message(self, *a): pass\n"
    "h.HTTPServer(('127.0.0.1', int(os.environ['FARMD_PORT_HTTP'])), H).serve_forever()\n"
)


def shell(script: str, **fields: Any) -> Manifest:
    """A pod that runs a shell script; it restarts fast and has a short grace."""
    given = {"id": "web", "command": ["/bin/sh", "-c", script], "restart": FAST, "stop": Stop(grace=5)}
    return Manifest(**(given | fields))


def web(**fields: Any) -> Manifest:
    """A pod that answers HTTP on a dynamic port; unhealthy while a file ``sick`` is in its directory."""
    given = {
        "id": "web",
        "command": ["python3", "-c", SERVER],
        "ports": {"http": Port()},
        "health": HealthCheck(
            type="http", port="http", interval=0.1, timeout=30, failures=2, start_period=10
        ),
        "restart": FAST,
    }
    return Manifest(**(given | fields))


@dataclass
class Running:
    """An agent in this process."""

    agent: Agent
    stop: asyncio.Event
    task: asyncio.Task[None]
    client: ConsulClient
    state: StateDirectory
    progress: Progress

    async def close(self) -> None:
        """A clean stop, awaited."""
        self.stop.set()
        try:
            async with asyncio.timeout(LIMIT):
                await self.task
        finally:
            await self.client.close()

    async def crash(self) -> None:
        """Cut it off at once."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()


@dataclass
class Agents(Cluster):
    """A registered cluster with real agents; their state folders lie below ``root``."""

    address: str = ""
    root: Path = Path()
    container: ContainerConfig | None = None
    systemd: SystemdConfig | None = None
    signing: SigningConfig | None = None
    running: list[Running] = field(default_factory=list)

    async def agent(self, node: str = "n1", *, wait: bool = True, consul: str = "", **config: Any) -> Running:
        """Start an agent; by default wait until its node's presence is its own."""
        client = client_of(consul or self.address)
        metrics = Metrics(CollectorRegistry())
        progress = Progress(CLOCK, metrics)
        settings: dict[str, Any] = {
            "node": node,
            "state_dir": self.root / node,
            "session_ttl": 10.0,
            "port_range": pod_ports(),
            "users": Users(share=True),
        }
        agent = Agent(
            container=self.container,
            systemd=self.systemd,
            signing=self.signing,
            config=AgentConfig(**(settings | {"retry_unusable": 0.2} | config)),
            client=client,
            keys=self.keys,
            clock=CLOCK,
            rng=random.Random(7),
            ids=SystemIds(),
            recorder=metrics,
            progress=progress,
            environ={"PATH": os.environ["PATH"], "CONSUL_HTTP_TOKEN": "secret"},
        )
        stop = asyncio.Event()
        task = asyncio.create_task(agent.run(stop))
        running = Running(agent, stop, task, client, agent.state, progress)
        self.running.append(running)
        if wait:

            async def present() -> bool:
                return task.done() or not agent.lacks()

            await eventually(present, what=f"presence of {node}")
            if task.done():
                task.result()
        return running

    async def want(
        self,
        manifest: Manifest,
        *,
        node: str = "n1",
        instance: str = "web",
        owner: str = "rc1",
        restart: int = 0,
        **more: Any,
    ) -> int:
        """Write a manifest and an intent, with ``more`` fields of it; its ModifyIndex."""
        body = manifests.canonical(manifest)
        sha = manifests.digest(body)
        intent = codec.encode(Intent(sha, owner, restart, **more))
        entries = await self.client.transaction(
            [
                operations.put(self.keys.manifest(sha), body),
                operations.put(self.keys.intent(node, instance), intent),
            ]
        )
        return max(entry.modify_index for entry in entries)

    async def tell_peers(self, *peers: Peer) -> str:
        """Store the document that names the peers; its digest."""
        body = document(peers)
        sha = manifests.digest(body)
        await self.client.put(self.keys.manifest(sha), body)
        return sha

    async def unwant(self, *, node: str = "n1", instance: str = "web") -> None:
        await self.client.delete(self.keys.intent(node, instance))

    async def realities(self, node: str = "n1") -> dict[str, Reality]:
        page = await self.client.list(self.keys.realities(node), mode="consistent")
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return {self.keys.reality_parts(e.key)[1]: codec.decode(Reality, e.value, e.key) for e in entries}

    async def until(
        self,
        condition: Callable[[Reality], object],
        *,
        node: str = "n1",
        instance: str = "web",
        what: str = "reality",
    ) -> Reality:
        """The first reality of an instance that fits."""

        async def fits() -> Reality | None:
            found = (await self.realities(node)).get(instance)
            return found if found is not None and condition(found) else None

        found = await eventually(fits, what=f"{what} of {node}/{instance}")
        assert isinstance(found, Reality)
        return found

    async def until_running(self, manifest: Manifest, **place: str) -> Reality:
        sha = sha_of(manifest)
        return await self.until(lambda r: r.manifest == sha and r.phase == "running", what="running", **place)

    async def until_gone(self, *, node: str = "n1", instance: str = "web") -> None:
        async def gone() -> bool:
            return instance not in await self.realities(node)

        await eventually(gone, what=f"removal of {node}/{instance}")

    async def presence(self, node: str = "n1") -> tuple[Presence, str] | None:
        entry = await self.client.read(self.keys.agent(node), mode="consistent")
        if entry is None:
            return None
        return codec.decode(Presence, entry.value, entry.key), entry.session

    def identities(self) -> list[Identity]:
        """Every process that any agent of this test left a record of."""
        found = []
        for path in self.root.glob("*/instances/*/process.json"):
            state = StateDirectory(path.parents[2])
            identity = state.identity(path.parent.name)
            if identity is not None:
                found.append(identity)
        return found

    async def close(self) -> None:
        for running in self.running:
            await running.crash()
        for identity in self.identities():
            for pid, ticks in ((identity.pid, identity.ticks), (identity.shim, identity.shim_ticks)):
                if start_ticks(pid) == ticks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


class AgentProcess:
    """``farmd agent`` with its own state directory; ends with the ``with`` block at the latest."""

    def __init__(self, rig: Agents, node: str = "n1", stdout: str = os.devnull, **more: str) -> None:
        self._stdout = stdout
        self._environ = {
            "PATH": os.environ["PATH"],
            "CONSUL_HTTP_ADDR": rig.address,
            "FARMD_STORE__PREFIX": rig.keys.prefix,
            "FARMD_AGENT__NODE": node,
            "FARMD_AGENT__STATE_DIR": str(rig.root / node),
            "FARMD_AGENT__PORT_RANGE": "{}-{}".format(*pod_ports()),
            "FARMD_AGENT__SHARE_USER": "true",
            "FARMD_WEB__AGENT_PORT": "0",
            **more,
        }

    async def __aenter__(self) -> AgentProcess:
        with NOTHING.open() as null, Path(self._stdout).open("w") as stdout:
            streams = (null.fileno(), stdout.fileno(), sys.__stderr__.fileno())
            self.process = forked_module("farmd", "agent", streams=streams, environ=self._environ)
        return self

    async def ended(self) -> int:
        """The exit code, once it ended."""
        return await asyncio.to_thread(self.process.wait, LIMIT)

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return await self.ended()

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)


@contextlib.asynccontextmanager
async def agents_on(address: str, root: Path) -> AsyncIterator[Agents]:
    """A cluster for the length of a ``with`` block; nothing of it runs on afterwards."""
    async with cluster_on(address) as made:
        rig = Agents(made.client, made.keys, made.id, address=address, root=root)
        try:
            yield rig
        finally:
            await rig.close()


def sha_of(manifest: Manifest) -> str:
    return manifests.digest(manifests.canonical(manifest))


async def logged(running: Running, text: str) -> str:
    """The log of the instance ``web``, once the text is in it."""
    path = running.state.logs("web") / "current.log"

    async def found() -> str:
        return path.read_text() if path.exists() and text in path.read_text() else ""

    return str(await eventually(found, what=f"{text!r} in the log"))


def kill(reality: Reality) -> None:
    """SIGKILL a pod's process; a pod without one is a mistake of the test (0 would be ourselves)."""
    assert reality.pid > 1
    os.kill(reality.pid, signal.SIGKILL)


def alive(reality: Reality) -> bool:
    return start_ticks(reality.pid) is not None
