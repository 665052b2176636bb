"""The noun of daemon sets, the file that people write, and what a change will do."""

from __future__ import annotations

from collections import Counter

import msgspec

from farmd.commands import specs
from farmd.commands.noun import Noun
from farmd.commands.outlook import Outlook, OutlookFacts, Placing, availability, counted
from farmd.daemonset.facts import STAYING, request
from farmd.daemonset.plan import NOWHERE
from scheduler.decide import eligibility, ranked
from scheduler.model import EVICTING
from store.daemonsets import DaemonSet, Floor
from store.errors import InputInvalid, refuse
from store.manifests import Manifest
from store.policies import Policy, check_over_nodes
from store.quantities import Seconds
from store.status import Status
from store.words import count_of

# What becomes of a daemon set's pods if its record is changed: pure, for ``--dry-run``.


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


# The file of a daemon set, as people write it (docs/cli.md).


class DaemonSetSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a daemon set file."""

    name: str
    pod: Manifest
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    min_health: Floor | None = None
    max_unavailable: int | str | None = None
    rate: int = 0
    max_in_progress: int = 50
    min_healthy_time: Seconds = 10.0
    unhealthy_after: Seconds = 300.0
    disabled: bool | None = None
    needs: list[str] = []
    rollout: Policy | None = None
    canary_selector: str = ""
    follow: bool = False


def _check(spec: DaemonSetSpec, source: str) -> None:
    if spec.rollout is not None:
        specs.check_policy(spec.rollout, f"{source}: rollout")
        check_over_nodes(spec.rollout, f"{source}: rollout")
    specs.check_follow(spec, source)
    specs.canonical_selector(spec.canary_selector, f"{source}: canary_selector")
    if spec.max_unavailable is not None:
        specs.check_share(spec.max_unavailable, f"{source}: max_unavailable")
        if spec.min_health is not None:
            found = f"{spec.max_unavailable} beside min_health {spec.min_health}"
            refuse(f"{source}: max_unavailable", found, "one of the two", field="max_unavailable")
    specs.check_count(spec.rate, f"{source}: rate")
    specs.check_seconds(spec.unhealthy_after, f"{source}: unhealthy_after")
    specs.check_count(spec.max_in_progress, f"{source}: max_in_progress", lowest=1)
    if spread := spec.pod.placement.spread:
        raise InputInvalid(
            f"{source}: pod.placement.spread: found {len(spread)} rules, expected none:"
            " a daemon set has one pod on every eligible node",
            field="pod.placement.spread",
        )


FILE = specs.SpecFile(spec=DaemonSetSpec, record=DaemonSet, check=_check)


# The noun of daemon sets for the commands that all nouns share (``farmd.commands.noun``).


def _facts(daemonset: DaemonSet, status: Status | None) -> list[tuple[str, str]]:
    counts = "not known yet"
    if status is not None:
        counts = f"{status.desired} desired, {counted(status)}"
    rate = (
        f"at most {count_of(daemonset.rate, 'node')} per minute" if daemonset.rate else "no limit per minute"
    )
    return [
        ("Nodes", counts),
        ("Stay healthy", _healthy(daemonset)),
        availability(daemonset.min_healthy_time),
        ("Pace", f"{rate}, at most {count_of(daemonset.max_in_progress, 'node')} at a time"),
        *([("Coming", _coming(daemonset))] if daemonset.coming else []),
        *([("Follows", "the config keys of its pods")] if daemonset.follow else []),
    ]


def _healthy(daemonset: DaemonSet) -> str:
    if daemonset.min_health is not None:
        return str(daemonset.min_health)
    return "all but one" if daemonset.max_unavailable is None else f"all but {daemonset.max_unavailable}"


def _coming(daemonset: DaemonSet) -> str:
    held = ", held" if daemonset.coming_held else ""
    return f"{daemonset.coming[:12]} on {daemonset.coming_to} of the nodes{held}"


DAEMON_SET: Noun[DaemonSetSpec, DaemonSet] = Noun(
    file=FILE,
    pods=Placing(
        request=request,
        wanted=lambda daemonset: daemonset.wants_pods,
        remains=lambda _, pods: f"has {count_of(pods, 'pod')}, expected 0" if pods else "",
        shrinks=lambda before, after: after.node_selector != before.node_selector,
        outlook=outlook,
        in_place="keeps min_health pods healthy and changes at most rate nodes per minute",
        pace="as min_health and rate allow",
        standstill=DaemonSet.standstill,
        gradual=lambda daemonset: daemonset.rollout is not None,
        gradual_if=" if the file has rollout:, else it is refused without --now",
    ),
    told=lambda daemonset: {"node_selector": daemonset.node_selector or "every node"},
    facts=_facts,
    membership=frozenset({"manifest", "node_selector"}),
)
