"""Decides the next changes of a daemon set: pure (p2 ``pkg/ds``).

Pods leave nodes that may not keep them, missing pods are added, intents repaired, outdated pods replaced in
place, and pods that stay unhealthy restarted; new nodes come before new manifests and these before restarts,
and all follow the record's pace. What must never break: where no
node is eligible nothing is removed, because that is far more often a mistake than a wish (a drain is a
person's command on its node, and does remove). During a freeze nothing is removed or replaced that no person
asked for since (R18). A disabled daemon set changes nothing, and neither does one that is taken (R14); one
that is being deleted removes every pod, unless its manager does.
While an older daemon set claims the same nodes nothing is added or replaced.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from farmd.daemonset.facts import Need, Plan, Snapshot
from farmd.pods.ailing import restarts, why_restarted
from farmd.pods.state import altered, cramped, foreign, settling
from farmd.runtime.wake import earliest
from farmd.work import owned
from farmd.work.model import Ask, Blocked, frozen
from farmd.work.model import blocked as told
from scheduler.decide import WORDS, ranked
from store.pods import Place
from store.status import Status
from store.words import count_of, share

# Limits how fast a daemon set changes nodes: pure (p2 stored rate and minimum health, and used neither).
#
# The pace is computed from the pods themselves, from when each was last changed and whether it is available
# since, so another farm continues at the same pace. What must never break: through this farm's changes no
# more pods stop serving than the floor allows, and no manifest reaches more than ``max_in_progress`` nodes
# without proof.

MINUTE = 60.0
# A changed pod has this long to become healthy; after that it has failed, and no other pod waits for it.
SETTLING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How many nodes may be changed now; if not all, why, and when to look again (seconds)."""

    allowance: int
    why: str = ""
    after: float | None = None


def pace(snapshot: Snapshot) -> Pace:
    """The smaller of the allowances by rate and by pods in progress."""
    daemonset, now = snapshot.daemonset, snapshot.now
    settling = [state.pod.record.at for place, state in snapshot.pods.items() if on_its_way(snapshot, place)]
    room = daemonset.max_in_progress - len(settling)
    by_progress = Pace(
        max(0, room),
        f"{count_of(len(settling), 'node')} in progress, at most {daemonset.max_in_progress} may be",
        given_up_in(snapshot, min(settling, default=now)),
    )
    if not daemonset.rate:
        return by_progress
    recent = [at for state in snapshot.pods.values() if now - MINUTE < (at := state.pod.record.at) <= now]
    by_rate = Pace(
        max(0, daemonset.rate - len(recent)),
        f"the rate is at most {count_of(daemonset.rate, 'node')} per minute",
        min(recent, default=now) + MINUTE - now,
    )
    return min(by_progress, by_rate, key=lambda each: each.allowance)


def on_its_way(snapshot: Snapshot, place: Place) -> bool:
    """Whether a pod was changed lately and is not available yet; pods of absent agents do not count."""
    state = snapshot.pods[place]
    if state.available or not state.retained or state.absent or state.lost is not None:
        return False
    if snapshot.outdates(place):
        return False
    return snapshot.now >= state.pod.record.at and given_up_in(snapshot, state.pod.record.at) > 0


def given_up_in(snapshot: Snapshot, changed: float) -> float:
    """Seconds until a pod that was changed at that time has failed if it is not available."""
    return changed + SETTLING_SECONDS + snapshot.daemonset.min_healthy_time - snapshot.now


def spare(snapshot: Snapshot) -> int:
    """How many available pods may stop serving now."""
    available = sum(state.available for state in snapshot.kept.values())
    return max(0, available - snapshot.daemonset.floor(snapshot.desired))


NOWHERE = "no node is eligible"
# Reasons against nodes that the record asks for, by code.
LEFT_OUT = ("held", "capacity", "port", "runtime", "allow")
IN_FLIGHT = "other changes of the nodes' reservations are in flight"


def decide(snapshot: Snapshot) -> Plan | Ask[Need]:
    """The plan of one cycle, or a request for the fact that it lacks."""
    daemonset = snapshot.daemonset
    if daemonset.deleting:
        plan = _delete(snapshot)
    elif daemonset.disabled or daemonset.taken:
        return Plan()
    elif (need := _missing(snapshot)) is not None:
        return Ask(need)
    else:
        plan = _converge(snapshot)
    if plan.changes_pods:
        plan = dataclasses.replace(plan, why=_why(snapshot, plan), unasked=_unasked(snapshot, plan))
    return owned.with_following(daemonset, snapshot, plan)


def _missing(snapshot: Snapshot) -> Need | None:
    """The fact that the plan lacks."""
    if "room" in snapshot.unread and snapshot.outdated:
        return Need("room")
    count = min(len(snapshot.vacant) + len(snapshot.besides), pace(snapshot).allowance)
    if "places" in snapshot.unread and count and not snapshot.contention:
        return Need("places", count)
    return None


def _converge(snapshot: Snapshot) -> Plan:
    daemonset = snapshot.daemonset
    removals, refusal = _removals(snapshot)
    limit = pace(snapshot)
    additions = snapshot.offer[: limit.allowance] if not snapshot.contention else ()
    left = limit.allowance - len(additions)
    replacements = _replacements(snapshot, left)
    restarted, restart_in = _restarts(snapshot, left - len(replacements))
    blocked = (
        _frozen(snapshot)
        or told("contended", snapshot.contention)
        or told("nowhere", refusal)
        or told("foreign", foreign(daemonset.id, snapshot.pods))
        or told("cramped", cramped(snapshot.cramped))
    )
    waiting, after = "", None
    behind = len(snapshot.vacant) + len(snapshot.besides) > len(additions)
    if not snapshot.contention and (behind or len(_outdated(snapshot)) > len(replacements)):
        # The reason against one pod must not delay the others.
        why, waiting, after = _why_not(snapshot, limit, len(additions), len(replacements))
        blocked = blocked or told("floor", why)
    repairs = altered(daemonset.id, snapshot.pods)
    changes = additions or removals or repairs or replacements or restarted
    return Plan(
        additions=additions,
        removals=removals,
        repairs=repairs,
        replacements=replacements,
        restarts=restarted,
        blocked=blocked,
        waiting=waiting,
        after=earliest(after, restart_in),
        contended=IN_FLIGHT if snapshot.refused.get("contended") and not changes else "",
    )


def _delete(snapshot: Snapshot) -> Plan:
    """Remove all pods, then delete the record once no node runs one of them any more."""
    if (managed := owned.managed(snapshot.daemonset)) is not None:
        return Plan(blocked=managed)
    if snapshot.held_back:
        return Plan(blocked=frozen(snapshot.frozen or ""))
    if snapshot.pods:
        return Plan(removals=tuple(sorted(snapshot.pods)))
    return Plan(waiting=snapshot.running, ends=not snapshot.running)


def _removals(snapshot: Snapshot) -> tuple[tuple[Place, ...], str]:
    """The pods to remove now, and why others stay although their nodes should not keep them."""
    leaving = sorted(place for place, state in snapshot.pods.items() if not state.retained)
    if snapshot.held_back:
        return (), ""
    if snapshot.vacant or snapshot.kept:
        return tuple(leaving), ""
    drained = tuple(place for place in leaving if snapshot.pods[place].draining)
    left = len(leaving) - len(drained)
    why = f"{NOWHERE} ({_refusals(snapshot)})"
    return drained, f"{why}: refusing to remove the pods of {count_of(left, 'node')}" if left else why


def _refusals(snapshot: Snapshot) -> str:
    """``3 nodes: selector 2, capacity 1``."""
    parts = ", ".join(f"{code} {number}" for code, number in ranked(snapshot.refused))
    return f"{count_of(snapshot.nodes, 'node')}{': ' if parts else ''}{parts}"


def _outdated(snapshot: Snapshot) -> list[Place]:
    """Outdated pods that can be replaced: not those of absent agents, or without room."""
    pods = snapshot.pods
    if snapshot.daemonset.coming_held:
        return []
    return [
        place
        for place, state in ((place, pods[place]) for place in snapshot.outdated)
        if state.retained
        and not state.absent
        and state.lost is None
        and place not in snapshot.cramped
        and not state.foreign(snapshot.daemonset.id)
    ]


def _replacements(snapshot: Snapshot, allowance: int) -> tuple[Place, ...]:
    """Outdated pods to replace now. Pods that are down come first, because replacing them costs no
    availability.
    """
    if snapshot.held_back or snapshot.contention:
        return ()
    outdated = sorted(_outdated(snapshot))
    down = [place for place in outdated if snapshot.pods[place].down]
    if snapshot.daemonset.coming_beside:  # those that serve leave once another one is available beside them
        return tuple([place for place in down if place[0] not in snapshot.replaced][: max(0, allowance)])
    serving = [place for place in outdated if not snapshot.pods[place].down]
    return tuple((down + serving[: spare(snapshot)])[: max(0, allowance)])


def _restarts(snapshot: Snapshot, allowance: int) -> tuple[tuple[Place, ...], float | None]:
    """The pods to restart because they fail their check for too long, as a daemon set has no other place for
    them; and the seconds until time alone changes that.
    """
    daemonset = snapshot.daemonset
    if snapshot.frozen is not None or snapshot.contention:
        return (), None  # in a freeze not even after an edit of the record, which asks for no restart
    wanted = daemonset.manifest, daemonset.restart
    current = {
        place: state
        for place, state in snapshot.kept.items()
        if not (state.draining or state.outdated(*wanted) or state.foreign(daemonset.id))
        if not state.altered(daemonset.id) and place[0] not in snapshot.renewed  # the rollout decides there
    }
    due, later = restarts(current, daemonset.restart, daemonset.unhealthy_after, snapshot.now)
    pause = pace(snapshot).after if len(due) > allowance else None
    return tuple(due[: max(0, allowance)]), earliest(later, pause)


def _frozen(snapshot: Snapshot) -> Blocked | None:
    stands_still = any(not state.retained for state in snapshot.pods.values()) or _outdated(snapshot)
    return frozen(snapshot.frozen or "") if snapshot.held_back and stands_still else None


def _why_not(snapshot: Snapshot, limit: Pace, added: int, replaced: int) -> tuple[str, str, float | None]:
    """Why not everything is changed at once: (blocked, waiting, when to look again)."""
    if added + replaced >= limit.allowance:
        return "", limit.why, limit.after
    if len(snapshot.vacant) + len(snapshot.besides) > added:
        return "", "the scheduler assigns no place on some of the eligible nodes yet", None
    kept = snapshot.kept
    available = sum(state.available for state in kept.values())
    floor = snapshot.daemonset.floor(snapshot.desired)
    text = f"{share(available, len(kept), 'pod')} available, "
    text += snapshot.daemonset.standstill(snapshot.desired) or f"min_health keeps {floor} of them"
    changed = [state.pod.record.at for place, state in kept.items() if on_its_way(snapshot, place)]
    if not changed and not replaced and settling(kept.values()) is None:
        return f"no outdated pod can be replaced: {text}", "", None
    after = given_up_in(snapshot, min(changed)) if changed else None
    return "", f"waiting for health: {text}", after


def status(snapshot: Snapshot, plan: Plan, farm: str, since: float) -> Status:
    """The status. Pods on nodes that are given up do not count."""
    daemonset = snapshot.daemonset
    counted = {place: state for place, state in snapshot.pods.items() if state.lost is None}
    return owned.status(
        daemonset,
        plan,
        counted.values(),
        snapshot.desired,
        current=[state for place, state in counted.items() if not snapshot.outdates(place)],
        farm=farm,
        since=since,
        disabled=daemonset.disabled and not daemonset.deleting,
        remark=plan.waiting or _left_out(snapshot),
    )


def _left_out(snapshot: Snapshot) -> str:
    """Matching nodes without a pod, because people would look for one there."""
    numbers = ((code, snapshot.refused.get(code, 0)) for code in LEFT_OUT)
    told = [f"not on {count_of(number, 'node')} {WORDS[code]}" for code, number in numbers if number]
    if snapshot.unfit:
        told.append(f"{count_of(len(snapshot.unfit), 'node')} cannot run the version that is coming")
    return ", ".join(told)


def _unasked(snapshot: Snapshot, plan: Plan) -> tuple[Place, ...]:
    """Removals from nodes that became ineligible, and not by an edit of the record or a drain."""
    if snapshot.edited:
        return ()
    pods, stays = snapshot.pods, {node for node, _ in snapshot.kept}
    return tuple(
        place
        for place in plan.removals
        if not (pods[place].retained or pods[place].draining or place[0] in stays)
    )


def _why(snapshot: Snapshot, plan: Plan) -> str:
    """The reason of the plan's changes, in one line for the audit."""
    drained = sum(bool(snapshot.pods[place].draining) for place in plan.removals)
    left = len(plan.removals) - drained
    beside = sum(goal.node in snapshot.besides for goal in plan.additions)
    gone = "it is being deleted" if snapshot.daemonset.deleting else f"{count_of(left, 'pod')} may not stay"
    reasons = [
        f"{count_of(len(snapshot.vacant), 'node')} should have it"
        if plan.additions and snapshot.vacant
        else "",
        f"{count_of(beside, 'pod')} of another version beside" if beside else "",
        f"{count_of(drained, 'node')} drained" if drained else "",
        gone if left else "",
        "intents were lost or changed" if plan.repairs else "",
        owned.why_replaced(snapshot.daemonset, plan, snapshot.pods),
        why_restarted(plan.restarts, snapshot.daemonset.unhealthy_after),
    ]
    return "; ".join(reason for reason in reasons if reason)
