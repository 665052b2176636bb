"""What becomes of a controller's pods if its record is changed: pure, for ``--dry-run``."""

from __future__ import annotations

import msgspec

from farmd.commands.outlook import Outlook, OutlookFacts
from farmd.overview import PodRow
from scheduler.decide import allocation, eligibility
from store.pods import Place
from store.rcs import ReplicationController


def outlook(rc: ReplicationController, standing: OutlookFacts) -> Outlook:
    """The outlook for a controller as it will be."""
    if rc.disabled:
        return Outlook()
    pods, view, request = standing.pods, standing.view, standing.request
    retained = set(eligibility(request, view).retained)

    def order(place: Place) -> tuple[bool, bool, float, Place]:
        # As the plan removes pods, but for how long a pod has been healthy, which only farms know.
        row: PodRow = pods[place]
        return place[0] in retained, row.healthy, -row.placed_at, place

    surplus = max(0, len(pods) - rc.replicas_desired)
    removes = tuple(sorted(pods, key=order)[:surplus])
    stays = sorted(pods.keys() - set(removes))
    leaving = [place for place in stays if rc.strategy == "dynamic" and place[0] not in retained]
    missing = max(0, rc.replicas_desired - len(pods))
    asked = msgspec.structs.replace(request, leaving=frozenset(leaving))
    found = allocation(asked, missing + len(leaving), view)
    places = [(goal.node, goal.instance) for goal in found.assignments]
    moves = tuple(zip(leaving, places[missing:], strict=False))
    moved = {old for old, _ in moves}
    return Outlook(
        adds=tuple(places[:missing]),
        removes=removes,
        replaces=standing.outdated(set(stays) - moved, rc),
        moves=moves,
        unplaced=(found.why,) if found.why else (),
    )
