"""What a change will do to pods, as far as the fleet of this moment tells (``--dry-run``).

The farm that acts later reads and decides anew; an outlook changes nothing and promises nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from farmd.overview import PodRow
from scheduler.model import FleetView, PlacementRequest
from store.named import Owner
from store.pods import Place


class Foretold(Protocol):
    """What a dry run tells of a change."""

    def lines(self) -> list[str]:
        """For people."""

    def document(self) -> dict[str, Any]:
        """For JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Pods by place. ``replaces`` are restarted where they are, ``moves`` are (from, to).

    ``unplaced``: pods without a target and nodes without a pod, one line each, with the reasons.
    """

    adds: tuple[Place, ...] = ()
    removes: tuple[Place, ...] = ()
    replaces: tuple[Place, ...] = ()
    moves: tuple[tuple[Place, Place], ...] = ()
    unplaced: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For people, one line a pod."""
        lists = (("adds", self.adds), ("removes", self.removes), ("replaces", self.replaces))
        told = [f"{verb} {_title(place)}" for verb, places in lists for place in places]
        told += [f"moves {_title(old)} to {_title(new)}" for old, new in self.moves]
        return told + [f"no place: {line}" for line in self.unplaced]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        lists = {"adds": self.adds, "removes": self.removes, "replaces": self.replaces}
        moves = [{"from": _plain(old), "to": _plain(new)} for old, new in self.moves]
        plain = {verb: [_plain(place) for place in places] for verb, places in lists.items()}
        return {**plain, "moves": moves, "unplaced": list(self.unplaced)}


@dataclass(frozen=True, slots=True)
class OutlookFacts:
    """What an outlook is made from: an owner's pods, the fleet, and what the scheduler is asked."""

    pods: Mapping[Place, PodRow]
    view: FleetView
    request: PlacementRequest

    def outdated(self, places: Collection[Place], owner: Owner) -> tuple[Place, ...]:
        """The places of the owner's pods that are replaced or restarted where they are."""
        rows = {place: self.pods[place] for place in sorted(places)}
        return tuple(
            place
            for place, row in rows.items()
            if row.manifest != owner.manifest or row.restart < owner.restart
        )


def _title(place: Place) -> str:
    return "/".join(place)


def _plain(place: Place) -> dict[str, str]:
    node, instance = place
    return {"node": node, "instance": instance}
