"""What becomes of a daemon set's pods if its record is changed: pure, for ``--dry-run``."""

from __future__ import annotations

from collections import Counter

from farmd.commands.outlook import Outlook, OutlookFacts
from farmd.daemonset.eligibility import STAYING
from farmd.daemonset.plan import NOWHERE
from scheduler.decide import eligibility, ranked
from scheduler.model import EVICTING
from store.daemonsets import DaemonSet
from store.words import count_of


def outlook(daemonset: DaemonSet, standing: OutlookFacts) -> Outlook:
    """The outlook for a daemon set as it will be."""
    pods = standing.pods
    if daemonset.deleting:
        return Outlook(removes=tuple(sorted(pods)))
    if daemonset.disabled:
        return Outlook()
    found = eligibility(standing.request, standing.view)
    codes = {node: {reason.code for reason in reasons} for node, reasons in found.refused.items()}
    keeps = {place for place in pods if not codes.get(place[0], set()) & (EVICTING - STAYING)}
    leaving = pods.keys() - keeps
    if not found.eligible and not keeps:
        leaving = {place for place in leaving if "draining" in codes.get(place[0], ())}
    nodes = {node for node, _ in pods}
    without = Counter(code for node in codes.keys() - nodes for code in codes[node])
    why = ", ".join(f"{code} {number}" for code, number in ranked(without))
    head = f"no pod on {count_of(len(codes.keys() - nodes), 'node')}" if found.eligible else NOWHERE
    return Outlook(
        adds=tuple((node, standing.request.manifest.id) for node in found.eligible if node not in nodes),
        removes=tuple(sorted(leaving)),
        replaces=standing.outdated(keeps, daemonset),
        unplaced=(f"{head} ({why})",) if why else (),
    )
