"""What a replication controller does next: pure (p2 ``meetDesires``, spec of its order below).

Additions or removals first, then repairs of intents, then replacements in place. Disabled means no
effect at all. Removal takes pods on nodes that may not keep them, then unhealthy ones, then the newest.
While a rollout manages the RC only intents are repaired (R14). Frozen stops removals and replacements
that no person asked for since (R18); it never stops additions.
"""

from __future__ import annotations

from farmd.replication.model import Place, Plan, PodState, Snapshot
from store.status import Status


def decide(snapshot: Snapshot) -> Plan:
    """Plan one cycle."""
    rc = snapshot.rc
    if rc.disabled:
        return Plan()
    if rc.managed_by:
        return Plan(repairs=_repairs(snapshot, frozenset()))
    surplus = len(snapshot.pods) - rc.replicas_desired
    removals = _removals(snapshot, surplus) if surplus > 0 else ()
    blocked = snapshot.offer.why if surplus < 0 and snapshot.offer.missing else ""
    foreign = _foreign(snapshot)
    held_back = snapshot.frozen is not None and not snapshot.commanded
    if held_back and (removals or snapshot.outdated):
        removals, blocked = (), f"frozen: {snapshot.frozen}"
    return Plan(
        additions=snapshot.offer.assignments[: -surplus if surplus < 0 else 0],
        removals=removals,
        repairs=_repairs(snapshot, frozenset(removals)),
        replacements=() if held_back else _replacements(snapshot, frozenset(removals)),
        blocked=blocked or foreign,
    )


def removal_order(place: Place, state: PodState) -> tuple[bool, bool, float, Place]:
    """Who goes first: nodes that may not keep it, then unhealthy, then the newest; by name in the end."""
    return state.retained, state.healthy, -state.pod.record.at, place


def _removals(snapshot: Snapshot, count: int) -> tuple[Place, ...]:
    order = sorted(snapshot.pods, key=lambda place: removal_order(place, snapshot.pods[place]))
    return tuple(order[:count])


def _repairs(snapshot: Snapshot, leaving: frozenset[Place]) -> tuple[Place, ...]:
    """Pods whose intent is absent or says another manifest; never an intent of somebody else's."""
    return tuple(
        sorted(
            place
            for place, state in snapshot.pods.items()
            if place not in leaving and state.retained and _altered(snapshot.rc.id, state)
        )
    )


def _altered(owner: str, state: PodState) -> bool:
    if _belongs_elsewhere(owner, state):
        return False
    return state.intent is None or state.intent.record.manifest != state.pod.record.manifest


def _belongs_elsewhere(owner: str, state: PodState) -> bool:
    return state.unreadable or (state.intent is not None and state.intent.record.owner != owner)


def _foreign(snapshot: Snapshot) -> str:
    """A pod of ours whose intent is not known to be ours: nobody's to repair but a person's."""
    foreign = [
        (*place, f"belongs to {state.intent.record.owner}" if state.intent else "does not decode")
        for place, state in snapshot.pods.items()
        if _belongs_elsewhere(snapshot.rc.id, state)
    ]
    if not foreign:
        return ""
    node, instance, what = min(foreign)
    return f"{node}/{instance}: its intent {what}"


def _replacements(snapshot: Snapshot, leaving: frozenset[Place]) -> tuple[Place, ...]:
    """Outdated pods to replace now, so that at most ``max_unavailable`` pods do not serve.

    Unhealthy ones first: replacing what does not serve costs nothing. Never over an intent of somebody
    else's.
    """
    outdated = [
        place
        for place in snapshot.outdated
        if place not in leaving and not _belongs_elsewhere(snapshot.rc.id, snapshot.pods[place])
    ]
    if not outdated:
        return ()
    staying = [state for place, state in snapshot.pods.items() if place not in leaving]
    unavailable = sum(not state.healthy for state in staying)
    idle = sorted(place for place in outdated if not snapshot.pods[place].healthy)
    serving = sorted(place for place in outdated if snapshot.pods[place].healthy)
    return tuple(idle + serving[: max(0, snapshot.rc.max_unavailable - unavailable)])


def status(snapshot: Snapshot, plan: Plan, farm: str, since: float) -> Status:
    """What people are told. ``since`` is the time that a new state would carry."""
    rc = snapshot.rc
    placed = len(snapshot.pods)
    healthy = sum(state.healthy and place not in snapshot.outdated for place, state in snapshot.pods.items())
    outdated = len(snapshot.outdated)
    settled = placed == rc.replicas_desired == healthy and not outdated and plan.empty
    if rc.disabled:
        state, reason = "disabled", ""
    elif plan.blocked.startswith("frozen: "):
        state, reason = "frozen", plan.blocked
    elif plan.blocked:
        state, reason = "blocked", plan.blocked
    else:
        state, reason = ("converged" if settled else "progressing"), ""
    return Status(
        state=state,  # type: ignore[arg-type]
        desired=rc.replicas_desired,
        placed=placed,
        healthy=healthy,
        outdated=outdated,
        reason=reason,
        farm=farm,
        since=since,
    )
