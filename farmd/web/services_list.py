"""The list of services, whose pods serve, and what their deployments made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farmd.commands.mutation import Call
from farmd.farm.farm import Farm
from farmd.kinds import OTHER_NOUNS, title
from farmd.overview import Row
from farmd.services import commands
from farmd.services.commands import ServiceRow
from farmd.services.endpoints import serving
from farmd.tables import services
from farmd.tables.model import Table
from farmd.web.items import NamedList
from farmd.web.lists import Described, ItemList, ListLine, Shape, text_of
from store import families
from store.entry import Entry
from store.families import DEPLOYMENTS, SERVICES
from store.keys import is_sentinel
from store.named import decode_named
from store.services import Service


class ServiceList(ItemList):
    """All services; how many pods serve comes from the lists of their owners."""

    states = False

    def __init__(self, farm: Farm, lists: Mapping[str, ItemList]) -> None:
        super().__init__(farm, SERVICES.name, OTHER_NOUNS[SERVICES.name], SERVICES.name)
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
