"""What a change will do to pods, as forecast from the fleet of this moment (``--dry-run``).

The farm that acts later reads and decides again; an outlook changes nothing and promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from store.named import Owner, Record

if TYPE_CHECKING:
    from farmd.overview import PodRow
    from scheduler.model import FleetView, PlacementRequest
    from store.manifests import Manifest
    from store.pods import Place
    from store.status import Status


class Foretold(Protocol):
    """What a dry run shows of a change."""

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


# The description of a kind's records that own pods, for the commands that all nouns share.

T = TypeVar("T", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing(Generic[T]):
    """The part of a noun's description that only owners of pods have.

    Attributes:
        request: what the scheduler is asked for one more pod.
        wanted: whether its worker may add pods; only without may the record be deleted at once.
        remains: what stands in the way of a deletion without ``--cascade``, given the number of its pods;
            empty: nothing. ``emptied`` are the fields that a deletion sets so that none is wanted, and
            ``way_out`` what a person may do.
        shrinks: whether a change takes pods away or moves them.
        outlook: what becomes of its pods if the record is changed to this one: pure.
        in_place: how ``update --now`` goes, as a hint, and ``pace`` as a part of a sentence.
        gradual: whether a new manifest of a record comes step by step, where its kind knows how;
            ``gradual_if`` says when, as the end of a sentence.
        standstill: why a record keeps so many pods from being replaced in place; empty: it does not.
    """

    request: Callable[[T, Manifest], PlacementRequest]
    wanted: Callable[[T], bool]
    remains: Callable[[T, int], str]
    shrinks: Callable[[T, T], bool]
    outlook: Callable[[T, OutlookFacts], Outlook]
    in_place: str
    pace: str
    gradual: Callable[[Any], bool] = lambda _: True
    gradual_if: str = ""
    standstill: Callable[[T, int], str] = lambda _record, _pods: ""
    emptied: Mapping[str, Any] = field(default_factory=dict)
    way_out: str = "let --cascade remove the pods"


def counted(status: Status) -> str:
    """A part of a fact of ``describe``: how many pods there are; during an update, how many serve."""
    counts = f"{status.placed} placed, {status.healthy} healthy, {status.outdated} outdated"
    return f"{counts}, {status.serving} serving" if status.outdated and status.serving else counts


def availability(min_healthy_time: float) -> tuple[str, str]:
    """The line of ``describe`` that says when a healthy pod counts as available."""
    return "Available", f"a pod that is healthy for {min_healthy_time:g} s without a break"
