"""What must come true once all is well again: for controllers, nodes and everything shared. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from store.rcs import ReplicationController
from store.rollouts import Ended
from store.status import Status
from tests.stateful import app_goals, daemonset_goals
from tests.stateful.sight import Sight


def unfinished(sight: Sight, now: float) -> list[str]:
    """What should still change, or is not said as it is."""
    found = [line for rc in sight.rcs.values() for line in _rc(sight, rc)]
    found += daemonset_goals.unfinished(sight)
    found += app_goals.unfinished(sight)
    found += [f"the rollout {each.name} is under way" for each in sight.rollouts.values()]
    found += [f"the deployment {each.name} is under way" for each in sight.deployments.values()]
    owners = {owner for owner, _, _ in sight.pods} | {i.owner for i in sight.intents.values() if i}
    found += [f"orphans of {owner}" for owner in sorted(owners - sight.dump.owners.keys())]
    found += [f"the freeze of {key} lasts" for key in sight.under("failsafe")]
    found += [f"{node} counts as lost" for node in sight.agents if sight.lost(node)]
    return [*found, *_drains(sight, now), *_leftover_work(sight)]


def unreferenced(sight: Sight) -> list[str]:
    """Manifests that nothing refers to any more: they are collected in the end (R24)."""
    wanted = {rc.manifest for rc in sight.rcs.values()} | {pod.manifest for pod in sight.pods.values()}
    wanted |= {each.manifest for each in sight.daemonsets.values()}
    for _, ended in sight.dump.tree("history", Ended).values():
        wanted |= {ended.from_manifest, ended.to_manifest, ended.old.manifest}
    return [f"the manifest {sha[:8]} stays for nobody" for sha in sight.manifests.keys() - wanted]


def _drains(sight: Sight, now: float) -> Iterable[str]:
    """A node that nothing stands on any more is drained; a drain that is late says so, and acts if forced."""
    for node, record in sight.nodes.items():
        drain = record.drain
        if drain is None or drain.stage == "done":
            continue
        holders = {intent.owner for place, intent in sight.intents.items() if place[0] == node and intent}
        if not any(place[0] == node for place in sight.intents):
            yield f"{node} is empty and its drain is not over: {drain}"
        if 0 < drain.deadline < now - 10.0 and not drain.overdue:
            yield f"{node} is late and does not say so: {drain}"
        if drain.ignores_floor:
            left = [rc.name for rc in sight.rcs.values() if rc.id in holders and _works(rc)]
            yield from (f"{node} is drained by force, and {name} is still there" for name in left)


def _leftover_work(sight: Sight) -> Iterable[str]:
    """What workers remember is of something that exists."""
    known = {f"rcs/{rc}" for rc in sight.rcs} | {f"daemonsets/{each}" for each in sight.daemonsets}
    for name, work in sight.work.items():
        if work.transfer is not None and name not in known:
            yield f"work/{name} remembers a move of nobody's: {work}"


def _works(rc: ReplicationController) -> bool:
    return not rc.disabled and not rc.taken


def _rc(sight: Sight, rc: ReplicationController) -> Iterable[str]:
    mine, status = sight.pods_of(rc.id), sight.status("rcs", rc.id)
    if rc.deleting and not rc.replicas_desired and not rc.managed_by:
        if sight.keys.mutation_lock("rcs", rc.id) not in sight.entries:
            yield f"{rc.name} is being deleted and is still there, with {len(mine)} pods"
        return
    if rc.disabled:
        if status is None or status.state != "disabled":
            yield f"{rc.name} is disabled, its status says {status}"
        return
    outdated = sight.outdated(rc)
    cramped = [place for place in outdated if not sight.grows_into(place, rc.manifest)]
    outdated = [place for place in outdated if place not in cramped]
    # A pod that stays although its node may not keep it is left alone, intent and all.
    alone = [place for place in mine if place in sight.tampered and not _may_keep(sight, rc, place[0])]
    idle = [place for place, pod in mine.items() if not sight.serves(place, pod)]
    idle = [place for place in idle if place not in alone]
    if len(alone) >= rc.max_unavailable:
        outdated = []  # nothing that serves is taken down meanwhile
    misplaced = [place for place in mine if not _may_stay(sight, rc, place[0])]
    room = _room(sight, rc)
    if len(mine) > rc.replicas_desired or outdated or idle:
        yield f"{rc.name}: {len(mine)} of {rc.replicas_desired} pods, outdated {outdated}, idle {idle}"
    if len(mine) < rc.replicas_desired and room:
        yield f"{rc.name}: {len(mine)} of {rc.replicas_desired} pods, although there is room on {room}"
    if misplaced and room:
        yield f"{rc.name}: pods on {misplaced} may not stay, although there is room on {room}"
    if f"rcs/{rc.id}" in sight.work and sight.work[f"rcs/{rc.id}"].transfer is not None:
        yield f"{rc.name}: a move is under way: {sight.work[f'rcs/{rc.id}'].transfer}"
    whole = len(mine) == rc.replicas_desired and not misplaced and not cramped and not alone
    yield from _said(rc, status, len(mine), whole=whole)


def _said(rc: ReplicationController, status: Status | None, placed: int, *, whole: bool) -> Iterable[str]:
    if status is None:
        yield f"{rc.name} has no status"
    elif (status.desired, status.placed) != (rc.replicas_desired, placed):
        yield f"{rc.name}: {placed} of {rc.replicas_desired} placed, its status says {status}"
    elif whole and status.state != "converged":
        yield f"{rc.name} is converged, its status says {status}"
    elif not whole and status.state == "blocked" and not status.reason:
        yield f"{rc.name} is blocked without a reason: {status}"
    elif (not whole and status.state not in ("blocked", "progressing", "converged")) or (
        placed < rc.replicas_desired and status.state != "blocked"
    ):
        yield f"{rc.name} is short, its status says {status}"


def _room(sight: Sight, rc: ReplicationController) -> list[str]:
    """Nodes that could take one more pod of a controller."""
    return sorted(
        node for node in sight.nodes if sight.takes(node, rc.node_selector) and _fits(sight, rc, node)
    )


def _fits(sight: Sight, rc: ReplicationController, node: str) -> bool:
    instances = {instance for at, instance in sight.pods_of(rc.id) if at == node}
    if len(instances) >= rc.replicas_per_node:
        return False
    if rc.replicas_per_node == 1 and sight.taken(node, rc.pod_id):
        return False
    return sight.asked(rc.manifest) <= sight.free(node)


def _may_stay(sight: Sight, rc: ReplicationController, node: str) -> bool:
    """A dynamic controller follows its selector; a drain moves everybody's pods."""
    record = sight.nodes.get(node)
    if record is None or record.drain is not None:
        return record is None
    return sight.fits_labels(node, rc.node_selector) or rc.strategy == "static"


def _may_keep(sight: Sight, rc: ReplicationController, node: str) -> bool:
    return sight.fits_labels(node, rc.node_selector) and sight.nodes[node].drain is None
