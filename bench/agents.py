"""One process that simulates the agents of a large fleet: real sessions, presence and reality, no workloads.

``python -m bench.agents ADDRESS NODES [TTL [PREFIX]] [--check LEAST MOST] [--ends SECONDS] [--port N]``
Every node has the agent's own ``Link`` (session, presence, renewals) and ``RealityWriter`` (compare-and-set,
fenced by the presence), so the store gets the same writes as from as many real agents. Two things differ.
One watch reads the intents of a hundred nodes, because Consul serves one client 200 connections. The TTL is
by default the longest that the agent's configuration allows, because renewals for a TTL of 15 s would cost
more than all that is measured beside them.

With ``--port N`` each pod has the port ``http`` with this number.

A pod on hold is held at once. With ``--ends SECONDS`` a job's member ends well so long after its start (R29).

A pod passes its first check after 0.5 s, or after a time of its node's own between LEAST and MOST seconds
(``first_check``), counted from when its intent was seen.

Like real agents they write nothing while nothing changes. The line ``restarts N`` on stdin makes N pods a
second die and come back, with three writes each; the end of stdin ends the process. Events are JSON lines
on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from bench.processes import commands, tell
from bench.seeding import node_names
from farmd.agent import reality
from farmd.agent.disk import Disk
from farmd.agent.lease import Leases
from farmd.agent.link import Contact, Link
from farmd.agent.model import EXITS_KEPT, AgentConfig
from farmd.agent.reality import RealityWriter
from farmd.agent.state import AgentIdentity, StateDirectory
from farmd.agent.users import Users
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.process.start import collect_rarely
from farmd.runtime.clock import SystemClock, system_rng
from store import codec
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import POOL_SIZES, HttpTransport
from store.entry import Entry, RawEntry
from store.features import JOBS
from store.keys import Keys
from store.ports import Lane
from store.reality import Exit, Health, Intent, Reality
from store.registration import cluster_id, sentinel_value
from store.variables import MEMBER
from store.watch import follow
from tests.fleet import KEYS

LONGEST_TTL = 60.0
QUERIES = 400
"""The most that are parked: one for each hundred nodes."""
JOIN_AT_ONCE = 50
BATCH_SECONDS = 0.1
DOWN_SECONDS, CHECK_SECONDS = 1.0, 0.5
CLOCK = SystemClock()


def first_check(node: str, least: float, most: float) -> float:
    """Seconds until the pods of a node pass their first check; the same in every run."""
    return random.Random(node).uniform(least, most)


@dataclass(frozen=True)
class Rig:
    """The objects that all nodes of the process share."""

    client: ConsulClient
    keys: Keys
    metrics: Metrics
    progress: Progress
    states: Path
    ttl: float
    check: tuple[float, float] = (CHECK_SECONDS, CHECK_SECONDS)
    ends: float | None = None
    port: int | None = None
    leases: Leases = field(default_factory=Leases)
    """One for all nodes, whose pods have no guards that read it: each is an open file."""
    disk: Disk = field(default_factory=Disk)
    """One for all nodes: each has a thread."""


class SimulatedNode:
    """One node: its link to the store, and pods that start at once and are healthy soon after."""

    def __init__(self, name: str, rig: Rig) -> None:
        state = StateDirectory(rig.states / name, rig.disk)
        state.root.mkdir()
        self.link = Link(
            AgentConfig(node=name, state_dir=state.root, session_ttl=rig.ttl, users=Users(share=True)),
            client=rig.client,
            keys=rig.keys,
            state=state,
            contact=Contact(CLOCK, state, rig.ttl, rig.leases),
            clock=CLOCK,
            rng=system_rng(),
            recorder=rig.metrics,
            any_workloads=lambda _: bool(self.pods),
            acted_on=lambda _: False,
            features=lambda: ["process", "runtime.process", "runtime.container", JOBS],
            doubts=dict,
            trusts=lambda: None,
            closed=str,
            left=dict,
            denied=str,
            look=partial(asyncio.sleep, 0),
        )
        self.link.identity = AgentIdentity(name)
        self.writer = RealityWriter(
            name,
            client=rig.client,
            keys=rig.keys,
            link=self.link,
            clock=CLOCK,
            rng=system_rng(),
            progress=rig.progress,
            obeyed=lambda: True,
        )
        self.name = name
        self.check = first_check(name, *rig.check)
        self.ends = rig.ends
        self.ports = {} if rig.port is None else {"http": rig.port}
        self.pods: dict[str, Reality] = {}
        self._obeyed = False

    def obey(self, wanted: Mapping[str, tuple[int, Intent]]) -> None:
        """Run exactly these intents. The pods of the first call count as running for long."""
        for instance, (index, intent) in wanted.items():
            known = self.pods.get(instance)
            if known is None or known.intent != index:
                self.pods[instance] = _started(intent, index, healthy=not self._obeyed, ports=self.ports)
                if MEMBER & intent.vars.keys():
                    self._member(instance, intent)
                elif self._obeyed:
                    asyncio.get_running_loop().call_later(self.check, self._pass, instance)
        for gone in self.pods.keys() - wanted.keys():
            del self.pods[gone]
        self._obeyed = True
        self.writer.tell(self.pods)

    def _member(self, instance: str, intent: Intent) -> None:
        """A job's member: it is held, or runs until its time is over."""
        if intent.hold:
            seen = msgspec.structs.replace(
                self.pods[instance], phase="held", started=0.0, ports={"job": 20_000}
            )
            self.pods[instance] = seen
        elif self.ends is not None:
            asyncio.get_running_loop().call_later(self.ends, self._end, instance)

    def _end(self, instance: str) -> None:
        if instance in self.pods:
            now = CLOCK.now()
            self._change(instance, phase="done", exits=[Exit(now, 0)], health=Health("passing", now))

    def restart(self, instance: str) -> None:
        """Let the workload exit, restart after its pause, and pass its first check."""
        old, now = self.pods[instance], CLOCK.now()
        exits = [*old.exits, Exit(now, 1)][-EXITS_KEPT:]
        ended = {"phase": "backoff", "started": 0.0, "pid": 0, "exits": exits, "health": Health(since=now)}
        self._change(instance, **ended, reason="exited with code 1 after 3600.0 s")
        asyncio.get_running_loop().call_later(DOWN_SECONDS, self._come_back, instance)

    def _come_back(self, instance: str) -> None:
        if (old := self.pods.get(instance)) is not None and old.phase == "backoff":
            now, restarts = CLOCK.now(), old.restarts + 1
            again = {"phase": "running", "started": now, "pid": 4711, "restarts": restarts}
            self._change(instance, **again, health=Health(since=now))
            asyncio.get_running_loop().call_later(CHECK_SECONDS, self._pass, instance)

    def _pass(self, instance: str) -> None:
        if (old := self.pods.get(instance)) is not None and old.phase == "running":
            self._change(instance, health=Health("passing", CLOCK.now()))

    def _change(self, instance: str, **fields: object) -> None:
        self.pods[instance] = msgspec.structs.replace(self.pods[instance], **fields)
        self.writer.tell(self.pods)


def _started(intent: Intent, index: int, *, healthy: bool, ports: dict[str, int]) -> Reality:
    now = CLOCK.now()
    return Reality(
        manifest=intent.manifest,
        owner=intent.owner,
        started=now,
        intent=index,
        pid=4711,
        ports=ports,
        health=Health("passing", now) if healthy else Health(),
    )


class SimulatedFleet:
    """All nodes of the process."""

    def __init__(self, rig: Rig, count: int) -> None:
        self._rig = rig
        self.nodes = {name: SimulatedNode(name, rig) for name in node_names(count)}
        self._seen: dict[str, tuple[int, Intent]] = {}
        self._obeyed: dict[str, dict[str, tuple[int, Intent]]] = {}
        self.restarts = 0.0

    async def run(self) -> None:
        """Announce all nodes, run their intents and restart pods at the rate that was asked for."""
        sentinel = sentinel_value(await cluster_id(self._rig.client, self._rig.keys))
        async with asyncio.TaskGroup() as tasks:
            for batch in _slices(list(self.nodes.values()), JOIN_AT_ONCE):
                for node in batch:
                    tasks.create_task(node.link.run())
                await asyncio.gather(*(node.link.present.wait() for node in batch))
            tell("present")
            tasks.create_task(self._begin_to_write(tasks))
            for shard in sorted({name[:-2] for name in self.nodes}):
                tasks.create_task(self._follow(self._rig.keys.tree("intent") + shard, sentinel))
            tasks.create_task(self._fail_now_and_then())

    async def _begin_to_write(self, tasks: asyncio.TaskGroup) -> None:
        """Some at a time: tens of thousands that wait for one connection cost more than what they write."""
        for batch in _slices(list(self.nodes.values()), JOIN_AT_ONCE):
            for node in batch:
                tasks.create_task(node.writer.run())
            await asyncio.sleep(BATCH_SECONDS)

    async def _follow(self, prefix: str, sentinel: bytes) -> None:
        client = self._rig.client
        pages = follow(
            lambda index, wait: client.list(prefix, index=index, wait=wait),
            name=prefix,
            clock=CLOCK,
            rng=system_rng(),
        )
        async for page in pages:
            self._apply(page.items, sentinel)

    def _apply(self, items: list[RawEntry], sentinel: bytes) -> None:
        keys, wanted, proven = self._rig.keys, dict[str, dict[str, tuple[int, Intent]]](), set[str]()
        for raw in items:
            node, instance = keys.intent_parts(raw.key)
            if raw.key == keys.sentinel(keys.intents(node)):
                if raw.decoded() == sentinel:
                    proven.add(node)
                continue
            known = self._seen.get(raw.key)
            if known is None or known[0] != raw.modify_index:
                intent = codec.decode(Intent, Entry.of(raw).value, raw.key)
                known = self._seen[raw.key] = (raw.modify_index, intent)
            wanted.setdefault(node, {})[instance] = known
        for node in proven & self.nodes.keys():
            if (now := wanted.get(node, {})) != self._obeyed.get(node):
                self._obeyed[node] = now
                self.nodes[node].obey(now)

    async def _fail_now_and_then(self) -> None:
        choose = random.Random(1)
        while True:
            await asyncio.sleep(choose.expovariate(self.restarts) if self.restarts else 0.2)
            node = choose.choice(list(self.nodes.values()))
            running = [name for name, pod in node.pods.items() if pod.phase == "running"]
            if self.restarts and running:
                node.restart(choose.choice(sorted(running)))


def _slices(nodes: list[SimulatedNode], size: int) -> list[list[SimulatedNode]]:
    return [nodes[start : start + size] for start in range(0, len(nodes), size)]


async def main(
    address: str,
    count: int,
    ttl: float = LONGEST_TTL,
    prefix: str = KEYS.prefix,
    check: tuple[float, float] = (CHECK_SECONDS, CHECK_SECONDS),
    ends: float | None = None,
    port: int | None = None,
) -> None:
    """Run until stdin ends."""
    metrics = Metrics(CollectorRegistry())
    pools = {**POOL_SIZES, Lane.WATCH: QUERIES}
    client = ConsulClient(
        HttpTransport(Address.from_environment({}, address), pool_sizes=pools), clock=CLOCK, recorder=metrics
    )
    with tempfile.TemporaryDirectory(prefix="farmd-bench-agents-") as states:
        rig = Rig(
            client, Keys(prefix), metrics, Progress(CLOCK, metrics), Path(states), ttl, check, ends, port
        )
        fleet = SimulatedFleet(rig, count)
        running = asyncio.create_task(fleet.run())
        asking = asyncio.create_task(_obey_stdin(fleet))
        done, _ = await asyncio.wait([running, asking], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, asking):
            task.cancel()
        await asyncio.gather(running, asking, return_exceptions=True)
        await client.close()
        for task in done:
            task.result()


async def _obey_stdin(fleet: SimulatedFleet) -> None:
    async for line in commands():
        fleet.restarts = float(line.removeprefix("restarts"))
        tell("restarts")


if __name__ == "__main__":
    collect_rarely()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("nodes", type=int)
    parser.add_argument("ttl", type=float, nargs="?", default=LONGEST_TTL)
    parser.add_argument("prefix", nargs="?", default=KEYS.prefix)
    parser.add_argument("--check", type=float, nargs=2, default=(CHECK_SECONDS, CHECK_SECONDS))
    parser.add_argument("--ends", type=float)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    reality.LOOK_AGAIN *= max(1.0, asked.ttl / LONGEST_TTL)  # as the renewals: see ``bench.fleet``
    asyncio.run(
        main(asked.address, asked.nodes, asked.ttl, asked.prefix, asked.check, asked.ends, asked.port)
    )
