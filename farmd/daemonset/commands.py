"""The noun of daemon sets for the commands that all nouns share (``farmd.commands.noun``)."""

from __future__ import annotations

from farmd.commands.noun import Noun
from farmd.commands.outlook import Placing, availability, counted
from farmd.daemonset.eligibility import request
from farmd.daemonset.outlook import outlook
from farmd.daemonset.spec import FILE, DaemonSetSpec
from store.daemonsets import KIND, DaemonSet
from store.status import Status
from store.words import count_of


def _facts(daemonset: DaemonSet, status: Status | None) -> list[tuple[str, str]]:
    counts = "not known yet"
    if status is not None:
        counts = f"{status.desired} desired, {counted(status)}"
    rate = f"at most {count_of(daemonset.rate, 'node')} a minute" if daemonset.rate else "no limit a minute"
    return [
        ("Nodes", counts),
        ("Stay healthy", "all but one" if daemonset.min_health is None else str(daemonset.min_health)),
        availability(daemonset.min_healthy_time),
        ("Pace", f"{rate}, at most {count_of(daemonset.max_in_progress, 'node')} at a time"),
    ]


DAEMON_SET: Noun[DaemonSetSpec, DaemonSet] = Noun(
    kind=KIND,
    document="DaemonSet",
    file=FILE,
    pods=Placing(
        request=request,
        wanted=lambda daemonset: daemonset.wants_pods,
        remains=lambda _, pods: f"has {count_of(pods, 'pod')}, expected 0" if pods else "",
        shrinks=lambda before, after: after.node_selector != before.node_selector,
        outlook=outlook,
        in_place="keeps min_health pods healthy and changes at most rate nodes a minute",
        pace="as min_health and rate allow",
        standstill=DaemonSet.standstill,
    ),
    told=lambda daemonset: {"node_selector": daemonset.node_selector or "every node"},
    facts=_facts,
    membership=frozenset({"manifest", "node_selector"}),
)
