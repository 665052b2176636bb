"""Decides the next changes of a replication controller: pure (p2 ``meetDesires``).

A move under way takes its next step first. Then come additions or removals, pods on lost nodes, repairs of
intents, replacements in place; a move starts when no pod is missing. A disabled RC changes nothing. Removal
takes pods on nodes that may not keep them first, then unhealthy ones, then the newest. While the RC is
taken, a move under way is ended, and nothing else happens (R14). A freeze
stops every move, and removals and replacements that no person asked for since (R18); it never stops
additions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from farmd.pods.ailing import why_restarted
from farmd.pods.state import PodState, altered, cramped, foreign
from farmd.replication import healing
from farmd.replication.facts import MoveStep, Need, Plan, Snapshot
from farmd.work import owned
from farmd.work.model import Ask, frozen
from farmd.work.model import blocked as told
from scheduler.model import Assignment
from store.pods import Place
from store.status import Status
from store.words import count_of, listed, share

LOCK_LOOK_SECONDS = 5.0


def decide(snapshot: Snapshot) -> Plan | Ask[Need]:
    """The plan of one cycle, or a request for a fact that it needs."""
    if snapshot.unread and (need := _missing(snapshot)) is not None:
        return Ask(need)
    plan = _pods(snapshot)
    if snapshot.rc.deleting:
        plan = _ending(snapshot, plan)
    if snapshot.offer.contended and not plan.changes_pods:
        plan = dataclasses.replace(plan, contended=snapshot.offer.why or "contended")
    if snapshot.locked:  # the release of a mutation lock wakes no watch
        after = LOCK_LOOK_SECONDS if plan.after is None else min(plan.after, LOCK_LOOK_SECONDS)
        plan = dataclasses.replace(plan, after=after)
    if plan.changes_pods:
        unasked = tuple(healing.unasked(snapshot, plan))
        plan = dataclasses.replace(plan, why=why(snapshot, plan), unasked=unasked)
    return owned.with_following(snapshot.rc, snapshot, plan)


def _missing(snapshot: Snapshot) -> Need | None:
    """The fact that the plan needs next. Places come last, because other workers place pods meanwhile."""
    unread, rc = snapshot.unread, snapshot.rc
    if rc.disabled:
        return None
    if "retained" in unread and _retention_matters(snapshot):
        return Need(fact="retained")
    need = healing.need(snapshot)
    moves = healing.advance(snapshot) is not None or (need is not None and need.purpose == "transfer")
    if "lock" in unread and moves:
        return Need(fact="lock")
    if "room" in unread and snapshot.outdated:
        return Need(fact="room")
    return need if "places" in unread else None


def _retention_matters(snapshot: Snapshot) -> bool:
    """Whether removals, repairs, moves or drains depend on which nodes may keep their pods."""
    if not snapshot.pods:
        return False
    if snapshot.transfer is not None or len(snapshot.pods) > snapshot.rc.replicas_desired:
        return True
    return (snapshot.rc.strategy == "dynamic" and not snapshot.judged) or any(
        state.draining or state.intent is None or state.intent.record.manifest != state.pod.record.manifest
        for state in snapshot.unwell.values()
    )


def _ending(snapshot: Snapshot, plan: Plan) -> Plan:
    """End the record of an RC that is being deleted once it has no pods and no node runs one."""
    rc = snapshot.rc
    if snapshot.pods or rc.replicas_desired or snapshot.transfer is not None or not plan.empty:
        return plan
    if (managed := owned.managed(rc)) is not None:
        return dataclasses.replace(plan, blocked=managed)
    if snapshot.held_back:
        return dataclasses.replace(plan, blocked=frozen(snapshot.frozen or ""))
    return dataclasses.replace(plan, waiting=snapshot.running, ends=not snapshot.running)


def _pods(snapshot: Snapshot) -> Plan:
    """The changes of the RC's own pods."""
    rc = snapshot.rc
    if rc.disabled:
        return Plan()
    if rc.taken:
        return _taken(snapshot)
    # A change of the record during a freeze would count as a person's command (R18).
    if snapshot.frozen is None and not rc.managed_by and snapshot.unmarked:
        return Plan(marks=True)
    step = healing.advance(snapshot)
    if step is None and snapshot.completed:  # before anything moves, because these never do
        return Plan(completions=snapshot.completed)
    step = step or _start(snapshot)
    if step is not None:
        return Plan(step=step)
    surplus = healing.surplus(snapshot)
    removals = _removals(snapshot, surplus) if surplus > 0 else _evictions(snapshot)
    moves, additions = _moves(snapshot), _additions(snapshot, -surplus)
    blocked = told("no_room", _short(snapshot)) or told("foreign", foreign(rc.id, snapshot.unwell))
    if snapshot.frozen is not None and (
        _would_move(snapshot) or (snapshot.held_back and (removals or snapshot.outdated))
    ):
        blocked = frozen(snapshot.frozen)
    if snapshot.held_back:
        removals = ()
    leaving = frozenset(removals) | {place for place, _ in moves}
    wait = healing.waiting(snapshot)
    restarted, restart_in = healing.restarted(snapshot)
    due = (wait.after, healing.look_again(snapshot), restart_in)
    return Plan(
        additions=additions,
        removals=removals,
        repairs=_repairs(snapshot, leaving),
        replacements=_replacements(snapshot, leaving, len(moves) + len(additions)),
        restarts=restarted,
        blocked=blocked
        or told("cramped", cramped(snapshot.cramped))
        or told("left_alone", _left_alone(snapshot))
        or told("put_off", wait.reason),
        moves=moves,
        waiting=_under_way(snapshot),
        after=min((at for at in due if at is not None), default=None),
    )


def _taken(snapshot: Snapshot) -> Plan:
    """The plan while the manager alone changes the pods (R14); a move under way is ended first."""
    if (step := healing.advance(snapshot)) is not None:
        return Plan(step=step)
    evidence = snapshot.frozen if snapshot.transfer is not None else None
    return Plan(blocked=frozen(evidence) if evidence is not None else None)


def _start(snapshot: Snapshot) -> MoveStep | None:
    """The start of a move for which the scheduler offered a place."""
    offer = snapshot.offer
    if offer.purpose != "transfer" or not offer.assignments:
        return None
    place = healing.candidate(snapshot)
    if place is None:
        return None
    new = (offer.assignments[0].node, offer.assignments[0].instance)
    return MoveStep("start", place, new, healing.cause_of(snapshot, snapshot.pods[place]))


def _moves(snapshot: Snapshot) -> tuple[tuple[Place, Assignment], ...]:
    if snapshot.offer.purpose != "moves":
        return ()
    return tuple(zip(healing.evacuees(snapshot), snapshot.offer.assignments, strict=False))


def _evictions(snapshot: Snapshot) -> tuple[Place, ...]:
    """Pods that a forced drain removes although there is no place for them."""
    offer = snapshot.offer
    if snapshot.frozen is not None or offer.purpose == "transfer" or not offer.missing or offer.contended:
        return ()
    placed = {place for place, _ in _moves(snapshot)}
    return tuple(
        place
        for place in healing.evacuees(snapshot)
        if place not in placed and healing.forced_out(snapshot.pods[place])
    )


def _additions(snapshot: Snapshot, missing: int) -> tuple[Assignment, ...]:
    offer = snapshot.offer
    return offer.assignments[: max(0, missing)] if offer.purpose == "additions" else ()


def _short(snapshot: Snapshot) -> str:
    """Why there are too few places for missing pods and for pods on lost nodes."""
    offer = snapshot.offer
    if not offer.missing or offer.purpose == "transfer" or offer.contended:
        return ""
    return offer.why


def _would_move(snapshot: Snapshot) -> bool:
    return bool(snapshot.transfer or healing.evacuees(snapshot) or healing.should_move(snapshot))


def _under_way(snapshot: Snapshot) -> str:
    move = snapshot.transfer
    if move is None:
        return ""
    held = f"; locked by {snapshot.locked}" if snapshot.locked else ""
    return f"moving {move.old_instance} from {move.old_node} to {move.new_node} ({move.cause}){held}"


def removal_order(place: Place, state: PodState) -> tuple[bool, bool, bool, float, Place]:
    """The order of removal: pods on nodes that may not keep them, then unhealthy ones, then those that are
    not available yet, then the newest; the place decides in the end.
    """
    return state.retained, state.healthy, state.available, -state.pod.record.at, place


def _removals(snapshot: Snapshot, count: int) -> tuple[Place, ...]:
    exempt = healing.moving(snapshot)
    order = sorted(
        snapshot.pods.keys() - exempt, key=lambda place: removal_order(place, snapshot.pods[place])
    )
    return tuple(order[:count])


def _repairs(snapshot: Snapshot, leaving: frozenset[Place]) -> tuple[Place, ...]:
    """Pods that stay and whose intents were lost or changed."""
    return tuple(place for place in altered(snapshot.rc.id, snapshot.unwell) if place not in leaving)


def _left_alone(snapshot: Snapshot) -> str:
    """A pod that stays on a node that may not keep it, and whose intent is therefore not repaired."""
    alone = [
        place
        for place, state in snapshot.unwell.items()
        if not state.retained and state.lost is None and state.altered(snapshot.rc.id)
    ]
    if not alone or snapshot.transfer is not None:
        return ""
    node, instance = min(alone)
    return f"{node}/{instance}: its intent was lost or changed, and the node may not keep the pod"


def _replacements(snapshot: Snapshot, leaving: frozenset[Place], arriving: int) -> tuple[Place, ...]:
    """Outdated pods to replace now, so that at most ``max_unavailable`` pods are not available.

    The ``arriving`` pods of this very plan are not available yet either. Pods that are down come first,
    because replacing them costs no availability. A pod on an absent agent waits until its state is known
    (R21), and no intent of another owner is overwritten.
    """
    if snapshot.held_back:
        return ()
    old = snapshot.transfer.old if snapshot.transfer is not None else None
    outdated = [
        place
        for place in snapshot.outdated
        if place not in leaving
        and place != old
        and place not in snapshot.cramped
        and not snapshot.pods[place].unknown
        and not snapshot.pods[place].foreign(snapshot.rc.id)
    ]
    if not outdated:
        return ()
    staying = [state for place, state in snapshot.pods.items() if place not in leaving]
    unavailable = sum(not state.available for state in staying) + arriving
    down = sorted(place for place in outdated if snapshot.pods[place].down)
    serving = sorted(place for place in outdated if not snapshot.pods[place].down)
    return tuple(down + serving[: max(0, snapshot.rc.unavailable_limit - unavailable)])


def status(snapshot: Snapshot, plan: Plan, farm: str, since: float) -> Status:
    """The status. ``since`` is the time of a new state."""
    rc, pods = snapshot.rc, list(snapshot.pods.values())
    return owned.status(
        rc,
        plan,
        pods,
        rc.replicas_desired,
        farm=farm,
        since=since,
        disabled=rc.disabled,
        settled=snapshot.transfer is None,
        remark=plan.waiting,
    )


# Says why a plan changes pods, in one line for the audit: pure.
#
# Every audit record of the plan has this reason. A step of a move has its own.


NAMES_AT_MOST = 3


def why(snapshot: Snapshot, plan: Plan) -> str:
    """The reasons of all parts of a plan; empty for a step of a move."""
    reasons = [
        _why_additions(snapshot) if plan.additions else "",
        _why_removals(snapshot) if plan.removals else "",
        _why_moves(snapshot, plan),
        f"done for good: {listed([name for _, name in plan.completions], NAMES_AT_MOST)}"
        if plan.completions
        else "",
        "intents were lost or changed" if plan.repairs else "",
        owned.why_replaced(snapshot.rc, plan, snapshot.pods),
        why_restarted(plan.restarts, snapshot.rc.unhealthy_after),
    ]
    return "; ".join(reason for reason in reasons if reason)


def _why_additions(snapshot: Snapshot) -> str:
    desired = snapshot.rc.replicas_desired
    return f"{share(-healing.surplus(snapshot), desired, 'pod')} missing"


def _why_removals(snapshot: Snapshot) -> str:
    surplus = healing.surplus(snapshot)
    if surplus > 0:
        return f"{count_of(surplus, 'pod')} more than {snapshot.rc.replicas_desired}"
    return "a forced drain, and no place elsewhere"


def _why_moves(snapshot: Snapshot, plan: Plan) -> str:
    forced = {place[0] for place, _ in plan.moves if healing.forced_out(snapshot.pods[place])}
    lost = {place[0] for place, _ in plan.moves} - forced
    parts = [f"lost: {_names(lost)}" if lost else "", f"forced drain of {_names(forced)}" if forced else ""]
    return "; ".join(part for part in parts if part)


def _names(nodes: Iterable[str]) -> str:
    return listed(sorted(nodes), NAMES_AT_MOST)
