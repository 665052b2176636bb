"""The lists of records that people name by a noun of the registry, such as controllers and rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from farmd import overview
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun
from farmd.farm.farm import Farm
from farmd.kinds import KINDS, KindOfWork, load, title
from farmd.overview import Row
from farmd.overview.owners import unmanaged, why_unowned
from farmd.tables import manifests, nouns
from farmd.tables.model import Table
from farmd.tables.pods import pod_table
from farmd.web.lists import MOST_NOTED, Described, ItemList, ListLine, Shape, text_of
from store.families import FAMILIES

AT_ONCE = 500
"""How many lines are made before others have their turn."""


class NamedList(ItemList):
    """All records of one noun, with their statuses and the farms that own them."""

    def __init__(self, farm: Farm, kind: KindOfWork, lists: Mapping[str, ItemList]) -> None:
        super().__init__(farm, kind.family, kind.one, kind.many)
        self.noun: Noun[Any, Any] = load(kind.asked)
        self._tree = farm.caches.tree(FAMILIES[kind.family])
        self._lists = lists
        self._said = self.statuses()
        self._held = self.holders()
        self._known: dict[str, ListLine] = {}
        self._dirty: set[str] | None = None  # None: all
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
        stored = self._tree.get(keys.record(self.family, item))
        if stored is None:
            return None
        return Row(
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
        unowned = "" if row.owner else why_unowned(self.family, row.record, members)
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
        row = await self.noun.row(call, name)
        now, record, tables = call.clock.now(), row.record, dict[str, Table]()
        sha = "" if self.noun.pods is None else record.manifest
        _, runs = await manifests.read(call, sha)
        if self.noun.pods is not None or KINDS[self.family].owns_pods:
            found = await overview.pods(call.client, call.keys, record)
            tables[f"Pods ({len(found.rows)})"] = pod_table(found.rows, found.broken, now, same="OWNER")
        facts = nouns.facts(self.noun, row, now, runs)
        if besides := KINDS[self.family].besides:
            more, others = await load(besides)(call, record)
            facts, tables = [*facts, *more], tables | others
        return Described(record.id, record.name, row.state, row.reason, facts, tables, row, self.family)
