"""The rollouts of a farm hear of the controllers that they manage: of their records, pods and nodes."""

from __future__ import annotations

from collections.abc import Iterable

from farmd.cache.fleet import FleetIndex
from farmd.runtime.wake import Wake
from store.cache import PrefixCache
from store.rcs import ReplicationController


class Following:
    """Which controllers have a rollout that works here, and whom their changes wake."""

    def __init__(self, fleet: FleetIndex, controllers: PrefixCache[ReplicationController]) -> None:
        self._fleet = fleet
        self._wakers: dict[str, Wake] = {}
        controllers.subscribe(self._changed)

    def follow(self, controllers: Iterable[str], rollout: str, wake: Wake) -> None:
        """Set ``wake`` when one of the controllers or one of their pods changed."""
        for controller in controllers:
            self._wakers[controller] = wake
            self._fleet.follow(controller, rollout, wake)

    def unfollow(self, controllers: Iterable[str], rollout: str) -> None:
        """The rollout's worker ended."""
        for controller in controllers:
            self._wakers.pop(controller, None)
            self._fleet.unfollow(controller, rollout)

    def _changed(self, changed: set[str]) -> None:
        for key in changed if self._wakers else ():
            if (wake := self._wakers.get(key.rpartition("/")[2])) is not None:
                wake.set()
