"""What must come true of daemon sets once all is well again. Pure.

Written from what the record promises (``store/daemonsets.py``), not from how the worker plans.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.daemonsets import DaemonSet
from store.nodes import Drain
from store.status import Status
from tests.stateful.sight import Place, Sight


def unfinished(sight: Sight) -> list[str]:
    """What should still change, or is not said as it is."""
    return [line for each in sight.daemonsets.values() for line in _one(sight, each)]


def elders(sight: Sight, daemonset: DaemonSet) -> list[DaemonSet]:
    """Daemon sets of the same pod that want pods and were there first."""
    born = {
        each.id: sight.entries[sight.keys.record("daemonsets", each.id)].create_index
        for each in sight.daemonsets.values()
    }
    return [
        each
        for each in sight.daemonsets.values()
        if each.pod_id == daemonset.pod_id
        and not each.disabled
        and not each.deleting
        and born[each.id] < born[daemonset.id]
    ]


def alike(one: DaemonSet, two: DaemonSet) -> bool:
    """Whether two daemon sets must want the same nodes, whatever nodes there are."""
    return one.node_selector == two.node_selector or "" in (one.node_selector, two.node_selector)


def _one(sight: Sight, daemonset: DaemonSet) -> Iterable[str]:
    name, mine = daemonset.name, sight.pods_of(daemonset.id)
    status = sight.status("daemonsets", daemonset.id)
    if daemonset.taken:
        return
    if daemonset.deleting:
        if sight.keys.mutation_lock("daemonsets", daemonset.id) not in sight.entries:
            yield f"{name} is being deleted and is still there, with {len(mine)} pods"
        return
    if daemonset.disabled:
        if status is None or status.state != "disabled":
            yield f"{name} is disabled, its status says {status}"
        return
    older = elders(sight, daemonset)
    vacant = sorted(node for node in sight.nodes if _lacks(sight, daemonset, node, mine))
    kept = {place: pod for place, pod in mine.items() if _keeps(sight, daemonset, place)}
    gone = [place for place in mine if place not in kept]
    yield from _leaving(sight, daemonset, gone, stays=not kept and not vacant)
    if any(alike(daemonset, elder) for elder in older):
        if status is None or status.state != "blocked" or "contends" not in status.reason:
            yield f"{name} contends with an older one, its status says {status}"
        return
    if older:
        return  # whether they share a node depends on what the older ones still want
    if vacant:
        yield f"{name}: no pod on {vacant}"
    idle = [place for place, pod in kept.items() if not sight.serves(place, pod)]
    outdated = [place for place in sight.outdated(daemonset) if place in kept]
    cramped = [place for place in outdated if not sight.grows_into(place, daemonset.manifest)]
    floor = daemonset.floor(len(kept) + len(vacant))
    stuck = bool(outdated) and len(kept) - len(idle) <= floor
    if idle:
        yield f"{name}: {idle} do not serve"
    if len(outdated) > len(cramped) and not stuck:
        yield f"{name}: {sorted(set(outdated) - set(cramped))} are outdated"
    yield from _said(daemonset, status, len(mine), len(kept), whole=not (vacant or outdated or gone))
    if (stuck or cramped) and status is not None and (status.state != "blocked" or not status.reason):
        yield f"{name} cannot replace {outdated}, its status says {status}"


def _leaving(sight: Sight, daemonset: DaemonSet, gone: list[Place], *, stays: bool) -> Iterable[str]:
    """Pods that may not stay are gone, unless there is no node at all for them; a drain sends them away."""
    for place in gone:
        if sight.nodes[place[0]].drain is not None or not stays:
            yield f"{daemonset.name}: the pod on {place} may not stay"


def _said(
    daemonset: DaemonSet, status: Status | None, placed: int, desired: int, *, whole: bool
) -> Iterable[str]:
    if status is None:
        yield f"{daemonset.name} has no status"
    elif status.placed != placed or (whole and status.desired != desired):
        yield f"{daemonset.name}: {placed} of {desired} placed, its status says {status}"
    elif whole and desired and status.state != "converged":
        yield f"{daemonset.name} is converged, its status says {status}"


def _lacks(sight: Sight, daemonset: DaemonSet, node: str, mine: dict[Place, object]) -> bool:
    """Whether a node should have a pod and has none."""
    if any(place[0] == node for place in mine) or not sight.takes(node, daemonset.node_selector):
        return False
    if sight.taken(node, daemonset.pod_id):
        return False
    return sight.asked(daemonset.manifest) <= sight.free(node, daemonset.pod_id)


def _keeps(sight: Sight, daemonset: DaemonSet, place: Place) -> bool:
    drain = sight.nodes[place[0]].drain if place[0] in sight.nodes else Drain()
    if drain is not None and not (drain.stage == "pods" and sight.manifests[daemonset.manifest].system):
        return False
    return sight.fits_labels(place[0], daemonset.node_selector)
