"""The description of a kind's records that own pods, for the commands that all nouns share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from farmd.commands.outlook import Outlook, OutlookFacts
from scheduler.model import PlacementRequest
from store.manifests import Manifest
from store.named import Record
from store.status import Status

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
        standstill: why a record keeps so many pods from being replaced in place; empty: it does not.
    """

    request: Callable[[T, Manifest], PlacementRequest]
    wanted: Callable[[T], bool]
    remains: Callable[[T, int], str]
    shrinks: Callable[[T, T], bool]
    outlook: Callable[[T, OutlookFacts], Outlook]
    in_place: str
    pace: str
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
