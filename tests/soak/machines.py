"""What people do to the nodes of a soak, and to processes there."""

from __future__ import annotations

import random
from collections.abc import Awaitable

import msgspec

from farmd.commands.mutation import Mutation, commit
from farmd.nodes import commands as nodes
from store.nodes import Node, NodeStore, Taint
from tests.fault.invariants import Dump
from tests.soak import processes
from tests.soak.fleet import Fleet


class Machines:
    """Somebody with access to all nodes, who enters in ``killed`` which workloads were killed."""

    def __init__(self, fleet: Fleet, rng: random.Random, killed: set[tuple[int, int]]) -> None:
        self._fleet = fleet
        self._rng = rng
        self._killed = killed

    async def cordon(self, dump: Dump) -> bool:
        command = self._rng.choice((nodes.cordon, nodes.uncordon))
        await self._commit(command(self._fleet.call, self._node()))
        return True

    async def drain(self, dump: Dump) -> bool:
        node = self._node()
        if self._rng.random() < 0.5:
            await self._commit(nodes.undrain(self._fleet.call, node))
        else:
            await self._commit(nodes.drain(self._fleet.call, node, 600.0))
        return True

    async def label(self, dump: Dump) -> bool:
        """Say another zone of a node than its agent, or leave it to the agent."""
        node = self._node()
        if self._rng.random() < 0.5:
            await self._commit(nodes.label(self._fleet.call, node, {}, ["zone"]))
        else:
            await self._commit(nodes.label(self._fleet.call, node, {"zone": self._rng.choice("abc")}))
        return True

    async def taint(self, dump: Dump) -> bool:
        await self._set_taints(self._node(), [Taint("soak")] if self._rng.random() < 0.5 else [])
        return True

    async def kill_pod(self, dump: Dump) -> bool:
        """SIGKILL of a workload: its agent starts it again."""
        running = self._fleet.workloads()
        if not running:
            return False
        chosen = self._rng.choice(sorted(running, key=lambda each: each.place))
        self._killed.add((chosen.pid, chosen.ticks))
        processes.end([chosen])
        return True

    async def tidy(self, dump: Dump) -> None:
        """Take back cordons, labels and taints; drains end with the cordon."""
        for node in self._fleet.agents:
            await self._commit(nodes.uncordon(self._fleet.call, node))
            if "zone" in dump.tree("nodes", Node)[self._fleet.keys.node(node)][1].labels:
                await self._commit(nodes.label(self._fleet.call, node, {}, ["zone"]))
            await self._set_taints(node, [])

    async def _commit(self, prepared: Awaitable[Mutation]) -> None:
        await commit(self._fleet.call, await prepared)

    async def _set_taints(self, node: str, taints: list[Taint]) -> None:
        call = self._fleet.call
        view = await NodeStore(call.client, call.keys).get(node)
        if view.record.taints != taints:
            record = msgspec.structs.replace(view.record, taints=taints)
            await call.client.transaction([NodeStore(call.client, call.keys).write(view, record)])

    def _node(self) -> str:
        return self._rng.choice(sorted(self._fleet.agents))
