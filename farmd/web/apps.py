"""The list of apps, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.apps.scene import AppState
from farmd.commands.mutation import Call
from farmd.declaration import KindOfWork
from farmd.farm.farm import Farm
from farmd.tables import apps
from farmd.tables.model import Described, Table
from farmd.web.lists import ItemList, ListLine, Shape, text_of
from store.apps import App, AppStatus, DispatchState
from store.families import APPS


class AppList(ItemList):
    """All apps."""

    def __init__(self, farm: Farm, kind: KindOfWork) -> None:
        super().__init__(farm, kind.family, kind.one, kind.many)
        self._tree = farm.caches.tree(APPS)
        self._said = self.statuses()
        self.subscribe(kind.family)

    def made(self) -> Sequence[ListLine]:
        keys, rows = self.farm.keys, list[AppState]()
        for key, stored in self._tree.entries.items():
            name = keys.last_part(key)
            work = self.farm.caches.work.get(keys.work(self.family, name))
            state = work.record.dispatch if work is not None else None
            status = self._said.values.get(keys.status(self.family, name))
            rows.append(AppState(name=name, stored=stored, state=state or DispatchState(), status=status))
        return [ListLine(row.name, apps.state(row), _text(row), row) for row in rows]

    def table(self, rows: Sequence[Any]) -> Table:
        return apps.table(rows, [error.message for error in self._tree.broken.values()])

    def shape(self) -> Shape:
        known = {"name": str, "state": str, "status_outdated": bool}
        told = {"record": App, "progress": DispatchState, "status": AppStatus | None}
        return Shape(None, {**known, **told})

    async def described(self, call: Call, name: str) -> Described:
        return await apps.AppItems(call).described(name)


def _text(row: AppState) -> str:
    assert row.stored is not None
    return text_of(row.stored.record, row.name, apps.state(row), apps.reason(row))
