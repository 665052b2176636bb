"""A kind of work, as the claim engine sees it: the seam that a new kind implements.

A new kind lists its items, builds a worker for a claim, and reads what must be fresh before a worker plans
(``farmd/work/kind.py`` is the base of all).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from farmd.farm.plan import Item
from farmd.runtime.wake import Wake
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim, Locker
from store.ports import Recorder
from store.sessions import Session

# Lists the items of a kind whose records lie in shared trees, and reports their changes.


class Claimable(Protocol):
    """The fields of a record that the claim engine needs."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that farms select by."""

    @property
    def needs(self) -> list[str]:
        """Features that a farm must know (R11)."""


class Items:
    """Keeps the items of some trees up to date; ``item`` builds one from the last part of a key.

    ``always`` are items that have no record and never change.
    """

    def __init__(
        self,
        trees: Sequence[PrefixCache[Any]],
        keys: Keys,
        item: Callable[[str], Item | None] = lambda _: None,
        always: Iterable[str] = (),
    ) -> None:
        self._trees = trees
        self._keys = keys
        self._item = item
        self._items: dict[str, Item] = {name: Item(name, 0) for name in always}
        self._subscribers: list[Callable[[set[str], bool], None]] = []
        for tree in trees:
            tree.subscribe(self._changed)
            self._changed({*tree.entries, *tree.broken})

    def items(self) -> Mapping[str, Item]:
        """All items; an item whose record does not decode is marked as broken."""
        return self._items

    def trusted(self) -> bool:
        """Whether an item that is missing here is proven to be gone (R20)."""
        return all(tree.ready.is_set() and tree.doubt is None for tree in self._trees)

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the changed items, and with whether the change can affect claiming."""
        self._subscribers.append(changed)

    def subscribe_gone(self, gone: Callable[[set[str]], None]) -> None:
        """Call back with the items that are gone, whose state must be dropped."""
        self.subscribe(lambda changed, _: gone(changed - self._items.keys()))

    def _changed(self, changed: set[str]) -> None:
        matters = False
        items = set(map(self._keys.last_part, changed))
        for item in items:
            before, after = self._items.get(item), self._item(item)
            if after is None:
                self._items.pop(item, None)
            else:
                self._items[item] = after
            matters = matters or before is None or after is None or not before.claimed_like(after)
        for callback in self._subscribers:
            callback(items, matters)


class RecordItems(Items):
    """The items of one tree of ``Claimable`` records.

    A change in a tree ``beside`` it, whose keys end in an item's id, is a change of that item.
    """

    def __init__(self, tree: PrefixCache[Any], keys: Keys, beside: Sequence[PrefixCache[Any]] = ()) -> None:
        self._tree = tree
        super().__init__((tree, *beside), keys, self._record)

    def _record(self, item: str) -> Item | None:
        key = self._keys.record(self._tree.family, item)
        if (stored := self._tree.entries.get(key)) is not None:
            record: Claimable = stored.record
            return Item(item, stored.index, record.labels, tuple(record.needs))
        if (error := self._tree.broken.get(key)) is not None:
            return Item(item, int(error.fields.get("index", 0)), broken=error.message)
        return None


class Worker(Protocol):
    """Works on one item until it is cancelled. An exception counts as a crash (R10)."""

    def started(self) -> None:
        """Called once, before the first ``run``."""

    async def run(self) -> bool:
        """Work until nothing is left to do before the wake is set: true, and ``run`` is called again then.

        An idle worker has no task in this way, which is most of the memory that it would take.
        """

    def stopped(self) -> None:
        """Called once, after the last ``run`` ended."""

    async def gone(self) -> object:
        """Resolve the item's alerts, because the item does not exist any more. Called after ``stopped``."""

    def release(self) -> None:
        """Keep the item's alerts alive no more: the item's next worker does. Called after ``stopped``."""


class Kind(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """The family of its records and locks, such as ``rcs``."""

    def items(self) -> Mapping[str, Item]:
        """All items of this kind, by id, from a fresh cache."""

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        """What takes the ownership locks of the items (R7)."""

    def trusted(self) -> bool:
        """Whether ``items`` is complete right now; otherwise nothing is released (R20)."""

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the items whose records changed, and with whether the change can affect claiming.

        A record that comes or goes, other labels and other needs affect claiming; a changed count does not
        and costs no round.
        """

    async def barrier(self, items: Sequence[str]) -> None:
        """Return once the input of these items' workers was read after this call (R15)."""

    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        """A worker for a claim, built only after ``barrier``. ``wake`` is set when the record changes."""

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics that only a scrape needs."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Tasks that run beside the workers for as long as the farm does."""
