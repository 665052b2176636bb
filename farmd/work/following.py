"""The managers of a farm hear of the owners of pods that they manage: of their records, pods and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from farmd.cache.fleet import FleetIndex
from farmd.runtime.wake import Wake
from store.cache import PrefixCache


class Following:
    """Which owners have a manager that works here, and whom their changes wake. ``trees`` hold the owners."""

    def __init__(self, fleet: FleetIndex, trees: Sequence[PrefixCache[Any]]) -> None:
        self._fleet = fleet
        self._wakers: dict[str, Wake] = {}
        for tree in trees:
            tree.subscribe(self._changed)

    def follow(self, owners: Iterable[str], manager: str, wake: Wake) -> None:
        """Set ``wake`` when one of the owners or one of their pods changed."""
        for owner in owners:
            self._wakers[owner] = wake
            self._fleet.follow(owner, manager, wake)

    def unfollow(self, owners: Iterable[str], manager: str) -> None:
        """The manager's worker ended."""
        for owner in owners:
            self._wakers.pop(owner, None)
            self._fleet.unfollow(owner, manager)

    def _changed(self, changed: set[str]) -> None:
        for key in changed if self._wakers else ():
            if (wake := self._wakers.get(key.rpartition("/")[2])) is not None:
                wake.set()
