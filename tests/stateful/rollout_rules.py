"""What holds of every change that a rollout makes to the pods of its two controllers."""

from __future__ import annotations

from collections.abc import Iterable

from farmd.rollout.stages import ceiling, goals, minimum
from store.audit import Audit
from store.embedded.kv import Pair
from store.nodes import Node
from store.rcs import ReplicationController
from store.rollouts import KIND, Rollout, RolloutState
from store.work import Work
from tests.stateful.moment import Look, Moment

ENDS = ("rollout.done", "rollout.reverted", "rollout.aborted")


def standing(look: Look, rollout: Rollout | None) -> int:
    """How many pods both sides have."""
    return sum(len(look.standing(rc)) for rc in _sides(rollout))


def judge(look: Look, moment: Moment, audit: Audit) -> Iterable[str]:
    """Judge one transaction of a rollout's worker."""
    rollout = look.record(Rollout, moment.before[look.keys.record(KIND, audit.id)])
    if rollout is None:
        yield f"{audit.action} of a rollout that is not there or does not decode"
        return
    if not (moment.added or moment.gone or moment.changed or moment.intents):
        if audit.action not in ENDS:
            yield from _taken_together(look, rollout)
        return
    verbs = {(op.verb, op.key) for op in moment.operations}
    for rc in _sides(rollout):
        before = look.record(ReplicationController, moment.before.get(look.keys.record("rcs", rc)))
        if before is None or not before.taken or before.managed_by != f"{KIND}/{rollout.id}":
            yield f"changed pods of {rc}, which it has not taken: {before}"
        elif before.disabled:
            yield f"changed pods of {before.name}, which is disabled"
        if ("check-session", look.keys.mutation_lock("rcs", rc)) not in verbs:
            yield f"changed pods of {rc} without its mutation lock"
    strange = {owner for owner, _, _ in moment.added | moment.gone | moment.changed} - set(_sides(rollout))
    if strange:
        yield f"changed pods of {sorted(strange)}, which are none of its controllers"
    if rollout.paused:
        yield "changed pods while it is paused"
    yield from _counted(look, moment, rollout)
    yield from _switched(look, moment, rollout)
    yield from _floor(look, moment, rollout)


def _sides(rollout: Rollout | None) -> tuple[str, ...]:
    return () if rollout is None else (rollout.old, rollout.new)


def _taken_together(look: Look, rollout: Rollout) -> Iterable[str]:
    """Both controllers are taken while it moves, and lent else, in the very transaction of the turn."""
    work = look.at(Work, look.keys.work(KIND, rollout.id))
    moving = work is not None and work.rollout is not None and work.rollout.phase == "moving"
    for rc in _sides(rollout):
        record = look.at(ReplicationController, look.keys.record("rcs", rc))
        if record is not None and record.taken != moving:
            yield f"{record.name} is {'taken' if record.taken else 'lent'} and the state is {work}"


def _counted(look: Look, moment: Moment, rollout: Rollout) -> Iterable[str]:
    """Counts change with the pods, and neither grows beyond what there may be (P2)."""
    total = was = 0
    for rc in _sides(rollout):
        key = look.keys.record("rcs", rc)
        before = look.record(ReplicationController, moment.before.get(key))
        after = look.at(ReplicationController, key)
        if before is None or after is None:
            continue
        total += after.replicas_desired
        was += before.replicas_desired
        change = sum(p[0] == rc for p in moment.added) - sum(p[0] == rc for p in moment.gone)
        pods = len(look.pods(rc))
        if pods > max(after.replicas_desired, pods - change):
            yield f"{after.name}: {pods} pods, desired are {after.replicas_desired}"
        missing = before.replicas_desired - (pods - change)
        if after.replicas_desired - before.replicas_desired not in range(
            change - max(0, missing), change + 1
        ):
            counts = before.replicas_desired, after.replicas_desired
            yield f"{after.name}: {change} pods more, the counts are {counts}"
    most = ceiling(rollout, goals(rollout, minimum(rollout)))
    if total > most and total > was:
        yield f"both counts are {total}, at most {most} may be"


def _floor(look: Look, moment: Moment, rollout: Rollout) -> Iterable[str]:
    """By its doing no more serving pods leave than there are above the floor (P1), as their nodes say."""
    if look.troubled(moment.farm):
        return
    places = [(rc, place) for rc in _sides(rollout) for place in look.standing(rc)]
    known = all(look.settled(look.keys.reality(*place)) for _, place in places)
    if not known or look.blind(*(place for _, place in places)):
        return
    least = minimum(rollout)
    state = _state(look, moment.before.get(look.keys.work(KIND, rollout.id)), rollout)
    if state is not None and state.back:
        least = min(least, rollout.started_from - 1)
    serving = {(rc, *place) for rc, place in places if look.served(rc, place)}
    left = {pod for pod in (moment.gone | moment.changed) & serving if not _forced(look, pod[1])}
    if len(left) > max(0, len(serving) - least):
        yield f"{sorted(left)} leave, {len(serving)} of at least {least} serve"


def _switched(look: Look, moment: Moment, rollout: Rollout) -> Iterable[str]:
    """A rollout that switches a service takes no pod that serves from the version that the service names."""
    if rollout.policy.strategy != "blue-green":
        return
    state = _state(look, moment.before.get(look.keys.work(KIND, rollout.id)), rollout)
    named = rollout.new if state is not None and state.switched else rollout.old
    left = sorted(pod for pod in moment.gone if pod[0] == named and look.served(named, pod[1:]))
    # After a scale the version that serves has more pods than there are to be.
    before = look.record(ReplicationController, moment.before.get(look.keys.record("rcs", named)))
    surplus = max(0, before.replicas_desired - rollout.replicas) if before is not None else 0
    if len(left) > surplus and not all(_forced(look, node) for _, node, _ in left):
        yield f"{left} leave, and the service names {named}"


def _state(look: Look, pair: Pair | None, rollout: Rollout) -> RolloutState | None:
    work = look.record(Work, pair) or look.at(Work, look.keys.work(KIND, rollout.id))
    return work.rollout if work is not None else None


def _forced(look: Look, node: str) -> bool:
    record = look.at(Node, look.keys.node(node))
    return record is None or (record.drain is not None and record.drain.ignores_floor)
