"""Reads the input of a round of claiming; ``plan.py`` decides.

Items are all those that this farm's selector matches, whatever they need: all members must count the same
items, or they would not agree on which member should hold each (R7).
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from farmd.cache.caches import Caches
from farmd.farm.held import HeldLocks
from farmd.farm.kind import Kind
from farmd.farm.members import Members
from farmd.farm.model import FarmSettings, Item, Situation
from farmd.farm.supervisor import due_in
from store.keys import Keys
from store.ports import Clock, Rng
from store.selectors import parse


class ClaimReader:
    """Reads one kind for one farm: the items, which are held, and the members that share them."""

    def __init__(
        self,
        kind: Kind,
        settings: FarmSettings,
        keys: Keys,
        caches: Caches,
        held: HeldLocks,
        members: Members,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._keys = keys
        self._caches = caches
        self._held = held
        self._members = members
        self._clock = clock
        self._selector = parse(settings.selector_of(kind.name))
        self._features = frozenset(settings.features)
        self._free_since: dict[str, float] = {}
        self._patience = settings.patience * rng.uniform(0.75, 1.25)

    async def situation(
        self, mine: Mapping[str, object], *, above_since: float | None, draining: bool
    ) -> Situation:
        """The present situation.

        Raises:
            NotRegistered: nothing is known of the locks.
        """
        now = self._clock.mono()
        peers = self._members.peers()
        items = {item.id: item for item in self._kind.items().values() if self._shares(item)}
        await self._members.share(items, peers, draining=draining)
        claimable = {item.id: item for item in items.values() if self._knows(item)}
        held = self._held.known()
        self._note_free(claimable, held, now)
        return Situation(
            me=self._settings.name,
            claimable=claimable,
            held=held,
            mine=dict.fromkeys(mine, 0),
            peers=peers,
            preferred=self._members.preferred,
            targets=self._members.targets,
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
        return None if since is None else self._clock.mono() - since

    def _shares(self, item: Item) -> bool:
        # The labels and needs of a broken item are unknown; its owner reports it and does no more.
        return bool(item.broken) or self._selector.matches(item.labels)

    def _knows(self, item: Item) -> bool:
        return bool(item.broken) or self._features.issuperset(item.needs)

    def _note_free(self, claimable: Mapping[str, Item], held: Set[str], now: float) -> None:
        for item in claimable:
            if item in held:
                self._free_since.pop(item, None)
            else:
                self._free_since.setdefault(item, now)
        for gone in [item for item in self._free_since if item not in claimable]:
            del self._free_since[gone]

    def _not_before(self, now: float) -> dict[str, float]:
        wall, mine = self._clock.now(), self._keys.work(self._kind.name, "")
        due = {}
        for key, stored in self._caches.work.entries.items():
            if (seconds := due_in(stored.record, wall)) > 0 and key.startswith(mine):
                due[self._keys.last_part(key)] = now + seconds
        return due
