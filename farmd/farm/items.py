"""The items of a kind whose records lie in one shared tree: listed, and told of when they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from farmd.farm.model import Item
from store.cache import PrefixCache
from store.keys import Keys


class Claimable(Protocol):
    """What the claim engine needs of a record."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that farms select by."""

    @property
    def needs(self) -> list[str]:
        """Features that a farm must know (R11)."""


class RecordItems:
    """Keeps the items of a tree of ``Claimable`` records up to date."""

    def __init__(self, tree: PrefixCache[Any], keys: Keys) -> None:
        self._tree = tree
        self._keys = keys
        self._items: dict[str, Item] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []
        tree.subscribe(self._changed)
        self._changed({*tree.entries, *tree.broken})

    def items(self) -> Mapping[str, Item]:
        """All of them; those whose record does not decode too, marked as broken."""
        return self._items

    def trusted(self) -> bool:
        """Whether an item that is missing here is truly gone (R20)."""
        return self._tree.ready.is_set() and self._tree.doubt is None

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the items that changed, and whether that can matter to claiming."""
        self._subscribers.append(changed)

    def _changed(self, changed: set[str]) -> None:
        matters = False
        items = {self._keys.last_part(key): key for key in changed}
        for item, key in items.items():
            before, after = self._items.get(item), self._item(item, key)
            if after is None:
                self._items.pop(item, None)
            else:
                self._items[item] = after
            matters = matters or before is None or after is None or not before.claimed_like(after)
        for callback in self._subscribers:
            callback(set(items), matters)

    def _item(self, item: str, key: str) -> Item | None:
        if (stored := self._tree.entries.get(key)) is not None:
            record: Claimable = stored.record
            return Item(item, stored.index, record.labels, tuple(record.needs))
        if (error := self._tree.broken.get(key)) is not None:
            return Item(item, int(error.fields.get("index", 0)), broken=error.message)
        return None
