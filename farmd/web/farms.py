"""The list of farms, and how many items each holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from farmd.commands.mutation import Call
from farmd.farm.farm import Farm
from farmd.overview import FarmRow
from farmd.tables import nodes
from farmd.tables.model import Table, ago, pairs
from farmd.web.lists import Described, ItemList, ListLine, Shape
from store.entry import RawEntry
from store.errors import NotFound
from store.families import FARMS
from store.farms import Member
from store.locks import Holder
from store.times import rfc3339


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
