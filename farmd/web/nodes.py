"""The list of nodes: people's settings, agents, and what farms say of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from farmd import overview
from farmd.commands.mutation import Call
from farmd.farm.farm import Farm
from farmd.kinds import KindOfWork, listed, title
from farmd.overview import NodeRow
from farmd.tables import nodes
from farmd.tables.model import Table
from farmd.tables.pods import pod_table
from farmd.web.lists import Described, ItemList, ListLine, Shape
from store import codec, families
from store.entry import RawEntry, Stored
from store.errors import NotFound, RecordInvalid
from store.keys import valid_segment
from store.nodes import Condition, NodeRecords, NodeStatus, NodeStore
from store.pods import Pod


class NodeList(ItemList):
    """All nodes that have a record or an agent."""

    def __init__(self, farm: Farm, kind: KindOfWork) -> None:
        super().__init__(farm, kind.family, kind.one, kind.many)
        self._said = self.follow(farm.keys.status(kind.family, ""), _status)
        self.subscribe("nodes", "agents")
        farm.caches.work.subscribe(self._work_changed)
        farm.caches.pods.subscribe(lambda _: self.bell.ring())

    def _work_changed(self, keys: set[str]) -> None:
        verdicts = self.farm.keys.work(self.family, "")
        self.changed({key for key in keys if key.startswith(verdicts)})

    def made(self) -> Sequence[ListLine]:
        view = self.farm.fleet.view()
        names = [*self._names(), *view]
        rows = [self._row(name, len(view[name].pods) if name in view else 0) for name in dict.fromkeys(names)]
        return [ListLine(row.name, row.state.partition(",")[0], _text(row), row) for row in rows]

    def _names(self) -> list[str]:
        caches, keys = self.farm.caches, self.farm.keys
        return [keys.last_part(key) for key in (*caches.nodes.entries, *caches.agents.entries)]

    def _row(self, name: str, pods: int) -> NodeRow:
        caches, keys = self.farm.caches, self.farm.keys
        agent, unreadable = caches.agents.get(keys.agent(name)), caches.agents.broken.get(keys.agent(name))
        records = NodeRecords(
            name,
            caches.nodes.get(keys.node(name)),
            agent.record if agent is not None else None,
            unreadable.message if unreadable is not None else "",
        )
        work = caches.work.get(keys.work(self.family, name))
        lost, absent = (work.record.lost_since, work.record.absent_since) if work is not None else (0.0, 0.0)
        status, index = self._said.values.get(keys.status(self.family, name), (None, 0))
        absent = absent or (status.absent_since if status is not None else 0.0)
        return overview.node_row(records, Condition(lost, absent, status, index), pods)

    def table(self, rows: Sequence[Any]) -> Table:
        caches = self.farm.caches
        broken = [error.message for tree in (caches.nodes, caches.agents) for error in tree.broken.values()]
        return nodes.table(rows, broken, self.farm.clock.now())

    def shape(self) -> Shape:
        return Shape(NodeRow)

    async def described(self, call: Call, name: str) -> Described:
        store, now = NodeStore(call.client, call.keys), call.clock.now()
        view = await store.get(valid_segment(name, "node"))
        placed, present = self._placed(name), self.farm.fleet.present(name)
        found = await overview.pods_of_node(
            call.client, call.keys, name, placed, partial(self._titles, call), present=present
        )
        row = overview.node_row(view, await store.condition(name), len(found.placed))
        tables = {f"Pods ({row.pods})": pod_table(found.rows, found.broken, now, same="NODE")}
        facts = nodes.facts(view, row, now)
        return Described(name, name, row.state, row.reason, facts, tables, row, self.family)

    def _placed(self, node: str) -> dict[tuple[str, str, str], Stored[Pod]]:
        """The pods of a node, from the farm's own copies: to read the whole fleet's takes too long."""
        keys, pods, view = self.farm.keys, self.farm.caches.pods, self.farm.fleet.view().get(node)
        places = [(pod.owner, node, instance) for instance, pod in view.pods.items()] if view else []
        return {place: stored for place in places if (stored := pods.get(keys.pod(*place))) is not None}

    async def _titles(self, call: Call, owners: set[str]) -> dict[str, str]:
        """Names of owners of pods; one that the farm keeps no copy of is read."""
        keys, found = self.farm.keys, dict[str, str]()
        for family in families.owners():
            tree = self.farm.caches.tree(family)
            records = [tree.get(keys.record(family.name, owner)) for owner in owners]
            found |= {each.record.id: listed(family.name, each.record.name) for each in records if each}
        for family in families.actors():
            for owner in owners - found.keys() - {""}:
                with suppress(NotFound, RecordInvalid):
                    stored = await overview.records_of(call.client, keys, family).get(owner)
                    found[owner] = title(family.name, stored.record.name)
        return found


def _status(raw: RawEntry) -> tuple[NodeStatus, int]:
    return codec.decode(NodeStatus, raw.decoded(), raw.key), raw.modify_index


def _text(row: NodeRow) -> str:
    labels = " ".join(f"{key}={value}" for key, value in row.labels.items())
    address = row.agent.address if row.agent is not None else ""
    return f"{row.name} {row.state} {labels} {address} {row.reason} {row.cordon_reason}".lower()
