"""The lists of the page: farms, nodes, services, and the records of every noun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.noun import explain
from farmd.declaration import KindOfWork
from farmd.farm.farm import Farm
from farmd.kinds import OTHERS, asked, listed, title
from farmd.overview import FarmRow, NodeRow, Row
from farmd.overview.owners import unmanaged, why_unowned
from farmd.services import commands
from farmd.services.commands import ServiceRow
from farmd.services.endpoints import serving
from farmd.tables import items, nodes, nouns, services
from farmd.tables.model import Described, Table, ago, pairs
from farmd.web.lists import MOST_NOTED, Followed, ItemList, ListLine, Shape, text_of
from store import codec, families
from store.entry import Entry, RawEntry, Stored
from store.errors import NotFound, RecordInvalid
from store.families import DEPLOYMENTS, FAMILIES, FARMS, SERVICES
from store.farms import Member
from store.keys import is_sentinel
from store.locks import Holder
from store.named import decode_named
from store.nodes import Condition, NodeRecords, NodeStatus
from store.pods import Pod
from store.services import Service
from store.times import rfc3339

# The list of farms, and how many items each holds.


class FarmList(ItemList):
    """All farms that are present."""

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm, FARMS.name, "farm", "farms")
        self._tree = farm.caches.farms
        self._held = self.follow(farm.keys.tree("locks"), self._holder)
        self.subscribe(FARMS.name)

    def _holder(self, raw: RawEntry) -> tuple[str, str] | None:
        kind, _, mutation = self.farm.keys.lock_parts(raw.key)
        return (Holder.parse(raw.decoded()).id, kind) if kind and not mutation else None

    def rows(self) -> list[FarmRow]:
        """All farms as people see them."""
        held: dict[str, Counter[str]] = {}
        for farm, kind in self._held.values.values():
            held.setdefault(farm, Counter())[kind] += 1
        return [
            FarmRow(member=stored.record, items=dict(sorted(held.get(stored.record.id, Counter()).items())))
            for stored in self._tree.entries.values()
        ]

    def made(self) -> Sequence[ListLine]:
        return [
            ListLine(
                row.member.id,
                nodes.state(row.member),
                f"{row.member.id} {row.member.host} {row.member.version}",
                row,
            )
            for row in self.rows()
        ]

    def table(self, rows: Sequence[Any]) -> Table:
        broken = [error.message for error in self._tree.broken.values()]
        return nodes.farm_table(rows, self.farm.clock.now())._replace(broken=broken)

    def shape(self) -> Shape:
        return Shape(Member, {"items": dict[str, int]})

    async def described(self, call: Call, name: str) -> Described:
        row = next((row for row in self.rows() if row.member.id == name), None)
        if row is None:
            raise NotFound(f"farm {name!r} is not present", kind="farm", id=name)
        member = row.member
        facts = [
            ("Name", member.id),
            ("State", nodes.state(row.member)),
            ("Up", f"{ago(call.clock.now(), member.since)}, since {rfc3339(member.since)}"),
            ("Version", member.version),
            ("Host", f"{member.host}, pid {member.pid}"),
            ("Address", member.address),
            ("Kinds", ", ".join(member.kinds)),
            ("Selector", member.selector or "(everything)"),
            ("Features", ", ".join(member.features)),
            ("Holds", pairs(row.items) or "nothing"),
        ]
        return Described(member.id, member.id, nodes.state(row.member), "", facts, {}, row)


# The lists of records that people name by a noun of the registry, such as controllers and rollouts.

AT_ONCE = 500
"""How many lines are made before others have their turn."""


class KnownRecords(Protocol):
    """The records of a noun, by their keys; ``broken`` are those that do not decode."""

    @property
    def entries(self) -> Mapping[str, Stored[Any]]: ...

    @property
    def broken(self) -> Mapping[str, RecordInvalid]: ...


class FollowedRecords:
    """Records of which a farm keeps no copy: they are followed while somebody looks."""

    def __init__(self, followed: Followed[Stored[Any]]) -> None:
        self.entries: Mapping[str, Stored[Any]] = followed.values
        self.broken: Mapping[str, RecordInvalid] = {}


class NamedList(ItemList):
    """All records of one noun, with their statuses and the farms that own them."""

    def __init__(self, farm: Farm, kind: KindOfWork, lists: Mapping[str, ItemList]) -> None:
        super().__init__(farm, kind.family, kind.one, kind.many)
        self.noun = asked(kind.family)
        family, keys = FAMILIES[kind.family], farm.keys
        record = family.record
        assert record is not None
        self._tree: KnownRecords = (
            farm.caches.tree(family)
            if family.cached
            else FollowedRecords(
                self.follow(keys.tree(family.name), lambda raw: decode_named(record, keys, Entry.of(raw)))
            )
        )
        self._lists = lists
        self._said = self.statuses()
        self._held = self.holders()
        self._known: dict[str, ListLine] = {}
        self._dirty: set[str] | None = None  # None: all
        if family.cached:
            self.subscribe(kind.family)

    def changed(self, keys: set[str]) -> None:
        if self._dirty is not None:
            self._dirty |= {self.farm.keys.last_part(key) for key in keys}
            if len(self._dirty) > MOST_NOTED:  # nobody looked for long
                self._dirty = None
        super().changed(keys)

    async def ready(self) -> None:
        await super().ready()
        while len(self._changed_items()) > AT_ONCE:  # or ten thousand would hold up the farm
            self._make(AT_ONCE)
            await self.farm.clock.sleep(0)

    def made(self) -> Sequence[ListLine]:
        self._make(len(self._changed_items()))
        return list(self._known.values())

    def _changed_items(self) -> set[str]:
        """The items whose lines are to be made anew."""
        if self._dirty is None:
            self._known.clear()
            self._dirty = {self.farm.keys.last_part(key) for key in self._tree.entries}
        return self._dirty

    def _make(self, count: int) -> None:
        """Make so many lines anew."""
        dirty = self._changed_items()
        for _ in range(count):
            item = dirty.pop()
            row = self.row(item)
            if row is None:
                self._known.pop(item, None)
            else:
                text = text_of(row.record, row.state, row.owner, row.reason)
                self._known[item] = ListLine(row.record.name, row.state, text, row)

    def row(self, item: str) -> Row[Any] | None:
        """One record by its id, as far as it is known."""
        keys = self.farm.keys
        stored = self._tree.entries.get(keys.record(self.family, item))
        if stored is None:
            return None
        return Row(
            passive=FAMILIES[self.family].passive,
            record=stored.record,
            index=stored.index,
            status=self._said.values.get(keys.status(self.family, item)),
            owner=self._held.values.get(keys.lock(self.family, item), ""),
            unmanaged=self._unmanaged(stored.record),
        )

    def table(self, rows: Sequence[Any]) -> Table:
        broken = [error.message for error in self._tree.broken.values()]
        shown = [self.completed(row) for row in rows]
        return nouns.table(self.noun, shown, self.farm.clock.now(), broken)

    def completed(self, row: Row[Any]) -> Row[Any]:
        """A row with why no farm works on it, and how far what manages it is: for the rows that are shown."""
        managed = self._managed(getattr(row.record, "managed_by", ""))
        members = [stored.record for stored in self.farm.caches.farms.entries.values()]
        unowned = "" if row.owner or row.passive else why_unowned(self.family, row.record, members)
        return msgspec.structs.replace(
            row, managed=managed, unmanaged=self._unmanaged(row.record), unowned=unowned
        )

    def _unmanaged(self, record: Any) -> str:
        """Why what manages a record does nothing; empty: nothing manages it, or that can be read."""
        family, _, item = (by := getattr(record, "managed_by", "")).partition("/")
        manager = self._lists.get(family)
        if not isinstance(manager, NamedList):
            return ""
        error = manager._tree.broken.get(self.farm.keys.record(family, item))
        return "" if error is None else unmanaged(by, error)

    def _managed(self, by: str) -> str:
        family, _, item = by.partition("/")
        manager = self._lists.get(family)
        if not isinstance(manager, NamedList):
            return by
        with manager.looking():  # its statuses are known from the next look on
            row = manager.row(item)
        if row is None:
            return by
        progress = f": {row.status.progress}" if row.status is not None and row.status.progress else ""
        return f"{title(family, row.record.name)}{progress}"

    def shape(self) -> Shape:
        family = FAMILIES[self.family]
        known = {"state": str, "owner": str, "modify_index": int, "status_outdated": bool}
        return Shape(family.record, {**known, "status": family.status | None})

    async def described(self, call: Call, name: str) -> Described:
        return await items.described(call, self.noun, await self.noun.row(call, name))

    @property
    def explains(self) -> bool:
        return self.noun.words.owns_pods or self.noun.words.explains is not None

    async def explained(self, call: Call, row: Row[Any]) -> list[tuple[str, Table]]:
        if own := self.noun.words.explains:
            return await own()(call, row.record)
        found = await explain(call, self.noun, row.record, self.farm.fleet.view())
        return [(f"One more {name or 'pod'}", items.judged(each)) for name, each in found]


# The list of nodes: people's settings, agents, and what farms say of them.


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
        return await nodes.NodeItems(call, partial(self._pods, call)).described(name)

    async def _pods(self, call: Call, name: str) -> overview.Pods:
        placed, present = self._placed(name), self.farm.fleet.present(name)
        return await overview.pods_of_node(
            call.client, call.keys, name, placed, partial(self._titles, call), present=present
        )

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


# The list of services, whose pods serve, and what their deployments made of them.


class ServiceList(ItemList):
    """All services; how many pods serve comes from the lists of their owners."""

    states = False

    def __init__(self, farm: Farm, lists: Mapping[str, ItemList]) -> None:
        words = OTHERS[SERVICES.name]
        super().__init__(farm, words.family, words.one, words.many)
        keys = farm.keys
        self._records = self.follow(
            keys.tree(SERVICES.name),
            lambda raw: None if is_sentinel(raw.key) else decode_named(Service, keys, Entry.of(raw)).record,
        )
        self._owners: dict[str, NamedList] = {}
        for family in families.owners():
            found = lists.get(family.name)
            if isinstance(found, NamedList):
                self._owners[family.name] = found
                found.bell.tell(self.bell.ring)
        self.need(*self._owners.values())

    def made(self) -> Sequence[ListLine]:
        tree = self.farm.caches.tree(DEPLOYMENTS)
        deployments = {stored.record.id: stored.record.name for stored in tree.entries.values()}
        found = []
        for record in self._records.values.values():
            owners = {ref: owner for ref in record.active if (owner := self._owner(ref)) is not None}
            row = commands.row_of(record, owners, deployments)
            found.append(
                ListLine(record.name, "", text_of(record, record.project, services.active(row)), row)
            )
        return found

    def _owner(self, ref: str) -> tuple[str, Row[Any]] | None:
        family, _, item = ref.partition("/")
        row = self._owners[family].row(item) if family in self._owners else None
        return (title(family, row.record.name), row) if row is not None else None

    def table(self, rows: Sequence[Any]) -> Table:
        return services.table(rows, [], self.farm.clock.now())

    def shape(self) -> Shape:
        owners = {"serving": list[str], "gone": list[str]}
        return Shape(Service, {**owners, "desired": int, "healthy": int, "deploying": str})

    async def described(self, call: Call, name: str) -> Described:
        row: ServiceRow = await commands.row(call, name)
        record = row.record
        _, sightings = await commands.PodsWatch(call, record.id).look()
        found = serving(sightings, ())
        facts = services.facts(row, call.clock.now())
        shown = services.endpoints(found, f"no pod of {record.name} is available", owners=True)
        tables = {f"Endpoints ({len(found)} of {len(sightings)} pods)": shown}
        return Described(record.id, record.name, "", "", facts, tables, row, SERVICES.name)
