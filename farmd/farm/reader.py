"""Reads the input of a round of claiming; ``plan.py`` decides.

Items are all those that this farm's selector matches, whatever they need: all members must count the same
items, or they would not agree on which member should hold each (R7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from farmd.cache.caches import Caches
from farmd.farm.held import HeldLocks
from farmd.farm.kind import Kind
from farmd.farm.members import Members
from farmd.farm.model import FarmSettings, Item, Situation
from farmd.farm.supervisor import due_in
from store.keys import Keys
from store.ports import Clock, Rng
from store.selectors import parse


@dataclass(eq=False)
class ClaimReader:
    """Reads one kind for one farm: the items, which are held, and the members that share them."""

    kind: Kind
    settings: FarmSettings
    keys: Keys
    caches: Caches
    held: HeldLocks
    members: Members
    features: Callable[[], frozenset[str]]
    clock: Clock
    rng: Rng
    _free_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._selector = parse(self.settings.selector_of(self.kind.name))
        self._patience = self.settings.patience * self.rng.uniform(0.75, 1.25)

    async def situation(
        self, mine: Mapping[str, object], *, above_since: float | None, draining: bool
    ) -> Situation:
        """The present situation.

        Raises:
            NotRegistered: nothing is known of the locks.
        """
        now = self.clock.mono()
        peers = self.members.peers()
        items = {item.id: item for item in self.kind.items().values() if self._shares(item)}
        await self.members.share(items, peers, draining=draining)
        claimable = {item.id: item for item in items.values() if self._knows(item)}
        held = self.held.known()
        self._note_free(claimable, held, now)
        return Situation(
            me=self.settings.name,
            claimable=claimable,
            held=held,
            mine=dict.fromkeys(mine, 0),
            peers=peers,
            preferred=self.members.preferred,
            targets=self.members.targets,
            free_since=self._free_since,
            not_before=self._not_before(now),
            patience=self._patience,
            now=now,
            above_since=above_since,
            draining=draining,
        )

    def may_claim(self, item: Item) -> bool:
        """Whether this farm may work on the item (R11)."""
        return self._shares(item) and self._knows(item)

    def taken(self, item: str) -> float | None:
        """Note that this farm took the item; returns the seconds for which the item was free, if it was seen
        free.
        """
        since = self._free_since.pop(item, None)
        return None if since is None else self.clock.mono() - since

    def _shares(self, item: Item) -> bool:
        # The labels and needs of a broken item are unknown; its owner reports it and does no more.
        return bool(item.broken) or self._selector.matches(item.labels)

    def _knows(self, item: Item) -> bool:
        return bool(item.broken) or self.features().issuperset(item.needs)

    def _note_free(self, claimable: Mapping[str, Item], held: Set[str], now: float) -> None:
        for item in claimable:
            if item in held:
                self._free_since.pop(item, None)
            else:
                self._free_since.setdefault(item, now)
        for gone in [item for item in self._free_since if item not in claimable]:
            del self._free_since[gone]

    def _not_before(self, now: float) -> dict[str, float]:
        wall, mine = self.clock.now(), self.keys.work(self.kind.name, "")
        due = {}
        for key, stored in self.caches.work.entries.items():
            if (seconds := due_in(stored.record, wall)) > 0 and key.startswith(mine):
                due[self.keys.last_part(key)] = now + seconds
        return due
