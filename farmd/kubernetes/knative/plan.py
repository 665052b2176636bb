"""What the rollout of a Knative Service does next: pure.

hold → create → stage under way → stage done → next stage … → end, and back. A turn changes the record alone;
everything else is what the record still lacks, so a farm that takes over plans the same from the objects.
What must never break: a stage begins only once the one before it is observed, done and on record; a rollout
that goes back never turns forward again; under a freeze no bounds fall and no traffic moves.
"""

from __future__ import annotations

from msgspec.structs import replace

from farmd.kubernetes.knative import bounds, record, report, scales, scaling, sync, traffic
from farmd.kubernetes.knative.bounds import HELD, STAGE_READY
from farmd.kubernetes.knative.facts import Plan, RevisionBounds, Snapshot, StageBounds, Sync, Turn
from farmd.kubernetes.knative.objects import CAUSE, FINALIZER, RELEASED, RESUMED, UNKNOWN, condition
from farmd.rollout.staging import RolloutOrchestrator, overdue_shift
from farmd.work.model import Blocked, frozen
from store.times import rfc3339


def decide(knative: Snapshot) -> Plan:
    """Plan one cycle."""
    # A service that is not opted in is released whatever its settings say.
    if (wrong := bounds.misspelt(knative)) and knative.service.enabled:
        return Plan(blocked=Blocked("invalid", wrong))
    holds = knative.orchestrator is not None and not record.leaves(knative)
    # First of all, also in a freeze: otherwise Knative gives a new revision all of its pods at once.
    if holds and (held := scaling.holds(knative)):
        return Plan(writes=held)
    found = sync.sync(knative)
    if found.action == "blocked":
        return Plan(blocked=Blocked("foreign", found.reason))
    if found.action == "release":
        return _released(knative, found.reason)
    if found.action != "none":
        return _turned(knative, found)
    if knative.orchestrator is None or RELEASED in knative.record.metadata.annotations:
        return Plan(waiting="Knative has not created its revision yet" if knative.service.enabled else "")
    return _frozen(knative) if knative.frozen is not None else _staged(knative)


def _turned(knative: Snapshot, found: Sync) -> Plan:
    """The record changes, by what people or Knative said."""
    # Another record has another stage, whose bounds and traffic a freeze forbids.
    if knative.frozen is not None:
        return Plan(blocked=frozen(knative.frozen))
    return Plan(turn=_turn(found))


def _turn(found: Sync) -> Turn:
    begins = True if found.spec is not None else None
    return Turn(
        action=found.action,
        reason=found.reason,
        spec=found.spec,
        annotations=found.annotations,
        finalizer=begins,
    )


def _released(knative: Snapshot, reason: str) -> Plan:
    """Leave everything as people asked; the traffic stays."""
    if writes := scaling.released(knative):
        return Plan(writes=writes)
    # Last: the finalizer keeps the record until nothing on the service's objects is farmd's any more.
    return Plan(turn=Turn("release", reason, annotations={RELEASED: "true"}, finalizer=False))


# -- a stage ------------------------------------------------------------------------------------
def _staged(knative: Snapshot) -> Plan:
    """Where the stage stands: over, done, halted, or under way."""
    rollout = scales.rollout(knative)
    if record.paused(knative):
        return _paused(knative)
    if rollout.ready is True:
        return _over(knative)
    if rollout.stage_ready is True:
        return _next(knative, rollout)
    if rollout.stage_ready is False:
        return _halted(knative)
    found = condition(knative.record.status.conditions, STAGE_READY)
    if found.status != UNKNOWN or not knative.record.observed:
        return Plan(turn=Turn("begin", status=report.under_way(knative)))
    if found.reason == HELD:  # paused before, and the pause is over
        return Plan(turn=Turn("resume", "a person resumed it", status=report.under_way(knative)))
    return _pushed(knative)


def _pushed(knative: Snapshot) -> Plan:
    """Write what the stage lacks; with nothing left it is done, fails, is overdue, or is waited for."""
    rollout, done, writes = scaling.reconciled(knative)
    kept = scales.target_names((*rollout.stage_target_revisions, *rollout.initial_revisions))
    if writes := (*writes, *scaling.drained(knative, kept)):
        return Plan(writes=writes)
    # On record before the next stage begins, so that a farm that takes over does not judge the stage again.
    if done:
        return Plan(turn=Turn("stage-done", _told(rollout), status=report.concluded(knative, rollout)))
    return _failed(knative) or _overdue(knative) or _waits(knative, rollout)


def _waits(knative: Snapshot, rollout: RolloutOrchestrator) -> Plan:
    """What the stage waits for. Past the deadline without a fault there is no room, and people get a
    report.
    """
    times = [
        deadline(knative),
        scales.seconds(knative.record.spec.target_finish_time),
        scaling.reaps_at(knative),
    ]
    due = min((at - knative.now for at in times if at is not None and at > knative.now), default=None)
    if knative.now < deadline(knative):
        return Plan(waiting=_told(rollout), after=due)
    late = f"{knative.settings.progress_deadline:g} s without progress: {scales.short(knative)}"
    if record.back(knative):
        return Plan(blocked=Blocked("stuck", f"the way back makes no progress: {late}"), after=due)
    return Plan(blocked=Blocked("no_room", late), after=due)


def _told(rollout: RolloutOrchestrator) -> str:
    """The shares of the stage, for people."""
    stage = rollout.stage_target_revisions
    return ", ".join(f"{each.revision_name} {each.percent or 0} %" for each in stage)


def _next(knative: Snapshot, rollout: RolloutOrchestrator) -> Plan:
    """The stage after the one that is done, while that stands: goals that are counted from pods which have
    just gone would take the newcomer's bounds back, and give it traffic besides.
    """
    if writes := (*scaling.shifted(knative), *scaling.kept(knative)):
        return Plan(writes=writes)
    if not scaling.stands(knative):
        return _failed(knative) or _waits(knative, rollout)
    spec = knative.record.spec
    found = record.staged(knative, spec, rollout.stage_revision_status)
    if found is None:
        return _waits(knative, rollout)
    if found.stage_target_revisions == spec.stage_target_revisions:
        return Plan(blocked=Blocked("no_stage", "no stage follows the rollout's present state"))
    return Plan(turn=Turn("stage", spec=found, finalizer=True))


def _over(knative: Snapshot) -> Plan:
    """The end: final bounds, and nothing of the stage is left."""
    if writes := scaling.settled(knative):
        return Plan(writes=writes)
    meta = knative.record.metadata
    # The cause of a failure is shown until another revision serves.
    if CAUSE in meta.annotations and not record.back(knative):
        return Plan(turn=Turn("recovered", "another revision serves", annotations={CAUSE: None}))
    if FINALIZER in meta.finalizers and not _draining(knative):
        return Plan(turn=Turn("done", "all stages are over", finalizer=False))
    return Plan()


def _draining(knative: Snapshot) -> bool:
    """Whether a revision has bounds of a stage that it loses once it is empty. One that no route ever reached
    keeps them: by its own it would get its least pods.
    """
    return any(
        bounds.narrowed(knative, name)
        for name, autoscaler in knative.autoscalers.items()
        if autoscaler.spec.reachability and name in knative.revisions
    )


# -- what holds it ------------------------------------------------------------------------------
def _paused(knative: Snapshot) -> Plan:
    """Nothing moves, and the record says so; only drift is repaired. The time of a pause does not count as
    time without progress.
    """
    stage = condition(knative.record.status.conditions, STAGE_READY)
    if stage.status == UNKNOWN and stage.reason != HELD and knative.record.observed:
        return Plan(turn=Turn("pause", "a person paused it", status=report.held(knative)))
    if writes := scaling.kept(knative):
        return Plan(writes=writes)
    text = f"paused; farmctl rollout resume ksvc/{knative.service.name} continues it"
    return Plan(blocked=Blocked("paused", text, wanted=True))


def _frozen(knative: Snapshot) -> Plan:
    """Nothing falls and no traffic moves; a newcomer that fails is left, and the former bounds rise."""
    held = frozen(knative.frozen or "")
    rollout = scales.rollout(knative)
    if record.back(knative) and not (record.paused(knative) or knative.record.observed):
        return Plan(turn=Turn("begin", status=report.under_way(knative)))
    if record.paused(knative) or rollout.stage_ready is not None or not knative.record.observed:
        return Plan(blocked=held)
    _, _, wanted = scaling.reconciled(knative)
    bounded = [each for each in wanted if isinstance(each, StageBounds | RevisionBounds)]
    # A revision has two bounds, on its autoscaler and on record: if one falls, neither is written.
    falling = {each.revision for each in bounded if scaling.falls(knative, each)}
    writes = tuple(each for each in bounded if each.revision not in falling)
    if writes:
        return Plan(writes=writes, blocked=held)
    found = _failed(knative)
    if found is not None and found.turn is not None and found.turn.action == "back":
        return found
    return Plan(blocked=held, after=max(0.0, deadline(knative) - knative.now) or None)


def _halted(knative: Snapshot) -> Plan:
    """A fault stopped the rollout until a person resumes it; only drift is repaired."""
    status, says = knative.record.status, knative.record.metadata.annotations
    if says.get(RESUMED, "") != status.annotations.get(report.HALTED, ""):
        return Plan(turn=Turn("resume", "a person resumed it", status=report.under_way(knative)))
    taken = () if traffic.ours(knative) else scaling.shifted(knative)
    if writes := (*taken, *scaling.kept(knative)):
        return Plan(writes=writes)
    cause = condition(status.conditions, STAGE_READY).message
    hint = f"farmctl rollout resume | revert ksvc/{knative.service.name}"
    return Plan(blocked=Blocked("failed", f"{cause}; {hint}"))


# -- time ---------------------------------------------------------------------------------------
def deadline(knative: Snapshot) -> float:
    """When a stage that makes no progress has failed, if its newcomer is at fault."""
    return max(scales.since(knative), knative.risen) + knative.settings.progress_deadline


def _failed(knative: Snapshot) -> Plan | None:
    """The newcomer is at fault, and its time is over: back, or a halt; not while pods are not counted."""
    if knative.now < deadline(knative) or record.back(knative):
        return None
    grows = [each.revision_name for each in knative.record.spec.target_revisions]
    cause = next(filter(None, (scales.failing(knative, name) for name in grows)), "")
    if not cause:
        return None
    cause = f"{knative.settings.progress_deadline:g} s without progress: {cause}"
    turned = record.turned_back(knative, cause) if knative.settings.on_failure == "revert" else None
    if turned is not None and turned.action == "none":  # pods are not counted yet: look again
        return None
    if turned is not None:
        return Plan(turn=_turn(turned))
    return Plan(turn=Turn("halt", cause, status=report.stopped(knative, cause)))


def _overdue(knative: Snapshot) -> Plan | None:
    """A stage that is overdue with all its pods: more traffic makes the newcomer grow."""
    spec, now = knative.record.spec, knative.now
    finish = scales.seconds(spec.target_finish_time)
    stage = spec.stage_target_revisions
    if finish is None or now < finish or record.back(knative) or any(each.percent is None for each in stage):
        return None
    up = [each for each in stage if each.direction in ("", "up")]
    down = [each for each in stage if each.direction == "down"]
    known = scales.scales(knative, stage)
    if known is None or not down or not all(_complete(knative, each.revision_name) for each in (*up, *down)):
        return None
    shifted = overdue_shift(stage, knative.settings.ratio, known)
    later = replace(
        spec, stage_target_revisions=shifted, target_finish_time=rfc3339(now + knative.settings.timeout)
    )
    return Plan(turn=Turn("overdue", "the stage is overdue, and all of its pods exist", spec=later))


def _complete(knative: Snapshot, name: str) -> bool:
    """Whether a revision has all the pods that its autoscaler wants, and there are some."""
    spa = scales.autoscaler(knative, name)
    return knative.ready(name) and spa is not None and bool(spa.actual) and spa.actual == spa.desired
