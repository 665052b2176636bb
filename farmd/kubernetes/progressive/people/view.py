"""A rollout of a Knative Service as people see it: pure.

What a farm would do next comes from the farm's own plan, so that what people are told is what will happen.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from farmd.commands.waiting import fitting
from farmd.kubernetes.progressive import bounds, forecast, plan, reading, record, traffic
from farmd.kubernetes.progressive.model import Plan, Snapshot
from farmd.kubernetes.progressive.objects import CAUSE, RELEASED, RevisionPod, condition
from farmd.kubernetes.progressive.people.found import FoundService
from farmd.rollout.staging import TargetRevision
from store.words import count_of, lasting

SERVES = "Ready"


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of one service in a list, or of one controller beside it; ``target``: ksvc or rc."""

    target: str = "ksvc"
    name: str
    id: str
    phase: str
    stage: int = 0
    stages: int = 0
    shares: str = ""
    strategy: str = ""
    owner: str = ""
    reason: str = ""


class RevisionPodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a revision that takes part."""

    side: str
    revision: str
    pod: str
    state: str
    reason: str = ""


def row(seen: FoundService) -> RolloutRow:
    """How far it is."""
    knative, planned = seen.knative, plan.decide(seen.knative)
    number, total = forecast.position(knative) if _moves(knative) else (0, 0)
    return RolloutRow(
        name=seen.name,
        id=knative.service.metadata.uid,
        phase="blocked" if _obstructed(seen, planned) else phase(knative, planned),
        stage=number,
        stages=total,
        shares=", ".join(f"{name} {share} %" for name, share in sorted(knative.routed.items()) if share),
        strategy=f"{knative.settings.strategy}, ratio {knative.settings.ratio}",
        owner=seen.owner,
        reason=reason(seen, planned),
    )


def phase(knative: Snapshot, planned: Plan) -> str:
    """One word: off, waiting, done, moving, back, paused, halted or blocked."""
    there = knative.orchestrator
    if (RELEASED in there.metadata.annotations) if there is not None else not knative.service.enabled:
        return "off"
    if planned.blocked is not None:
        return {"paused": "paused", "failed": "halted"}.get(planned.blocked.code, "blocked")
    if there is None:
        return "waiting"
    if reading.rollout(knative).ready is True:
        return "done"
    return "back" if record.back(knative) else "moving"


def reason(seen: FoundService, planned: Plan) -> str:
    """What it waits for, or why it turned back; empty: nothing is in its way."""
    if planned.blocked is not None:
        return planned.blocked.text
    if seen.problem:
        return seen.problem
    if _obstructed(seen, planned):
        return seen.obstacle
    if seen.knative.orchestrator is None:
        return planned.waiting
    return seen.knative.record.metadata.annotations.get(CAUSE, "")


def _obstructed(seen: FoundService, planned: Plan) -> bool:
    """Whether its farm cannot do what is to be done, as where the API server refuses it."""
    return bool(seen.obstacle) and planned.blocked is None and not planned.empty


def _moves(knative: Snapshot) -> bool:
    """Whether there is a stage that is not the end."""
    return knative.orchestrator is not None and reading.rollout(knative).ready is not True


def lines(seen: FoundService, width: int = 0) -> list[str]:
    """One line for itself, one for each revision of its stage, and what it waits for."""
    knative, found = seen.knative, row(seen)
    head = [f"ksvc/{found.name}", found.phase]
    if _moves(knative):
        head += [f"stage {found.stage} of {found.stages}", found.strategy, *_times(knative)]
    sides = _sides(knative) if _moves(knative) else [f"  {found.shares}"] if found.shares else []
    why = [f"  {found.reason}"] if found.reason else []
    return fitting(["  ".join([*head, found.owner or "no farm"]), *sides, *why], width)


def _times(knative: Snapshot) -> Iterator[str]:
    yield lasting(knative.now - reading.since(knative))
    left = plan.deadline(knative) - knative.now
    yield f"deadline in {lasting(left)}" if left > 0 else "deadline over"


def _sides(knative: Snapshot) -> list[str]:
    stage = knative.record.spec.stage_target_revisions
    size = max((len(each.revision_name) for each in stage), default=0)
    return [
        f"  {each.direction or 'up':<4}  {each.revision_name:<{size}}  {_side(knative, each)}"
        for each in stage
    ]


def _side(knative: Snapshot, goal: TargetRevision) -> str:
    """``20 -> 40 %  3 of 4 pods, bounds 4/10; web-00002-x7: Pending, Insufficient cpu``."""
    name, share = goal.revision_name, goal.percent or 0
    now = knative.routed.get(name, 0)
    moved = f"{now} %" if now == share else f"{now} -> {share} %"
    pods = traffic.actual(knative, name)
    have = "? pods" if pods is None else count_of(pods, "pod")
    if goal.direction in ("", "up") and goal.target_replicas is not None and pods != goal.target_replicas:
        have = f"{'?' if pods is None else pods} of {count_of(goal.target_replicas, 'pod')}"
    standing, final = bounds.standing(knative, name), bounds.final(knative, name)
    told = f"{moved}  {have}, bounds {bounds.written(standing)}"
    told += f" (final {bounds.written(final)})" if final != standing else ""
    if goal.direction == "down" and now > share:
        told += f", shrinks when the Route shows {share} %"
    ailing = _ailing(knative, name) if goal.direction in ("", "up") else ""
    return f"{told}; {ailing}" if ailing else told


def _ailing(knative: Snapshot, name: str) -> str:
    """The first pod that does not serve, and why; else what is wrong with the revision."""
    for pod in knative.pods.get(name, ()):
        state, why = _state(pod)
        if state not in ("serves", "ends", "over"):
            return f"{pod.metadata.name}: {', '.join(filter(None, (state, why)))}"
    return reading.failing(knative, name)


def _state(pod: RevisionPod) -> tuple[str, str]:
    """What a pod does, and why it does not serve."""
    if pod.status.phase in reading.OVER:
        return "over", pod.status.reason
    if pod.metadata.terminating:
        return "ends", ""
    found = {each.type: each for each in pod.status.conditions}
    if SERVES in found and found[SERVES].status == "True":
        return "serves", ""
    placed = found.get("PodScheduled")
    if placed is not None and placed.status == "False":
        return pod.status.phase or "Pending", placed.message or placed.reason
    waits = [each.state.waiting.reason for each in pod.status.container_statuses if each.state.waiting]
    return pod.status.phase or "Pending", (waits or [""])[0]


def explained(seen: FoundService) -> list[str]:
    """Every line of the status, what a farm does next, and what Knative says of each revision."""
    knative, planned = seen.knative, plan.decide(seen.knative)
    told = lines(seen)
    if planned.turn is not None:
        told.append(
            f"  next: {planned.turn.action}{f', {planned.turn.reason}' if planned.turn.reason else ''}"
        )
    elif planned.writes:
        told.append(f"  next: {count_of(len(planned.writes), 'write')}, first {_write(planned)}")
    elif planned.waiting:
        told.append(f"  waits until {planned.waiting} stands")
    for name, revision in sorted(knative.revisions.items()):
        ready = condition(revision.status.conditions, "Ready")
        why = f": {', '.join(filter(None, (ready.reason, ready.message)))}" if ready.reason else ""
        told.append(f"  {name} is {'ready' if ready.status == 'True' else 'not ready'}{why}")
    for each in record.refused(knative):
        told.append(f"  {each} was reverted: farmctl rollout retry ksvc/{seen.name} {each}")
    return told


def _write(planned: Plan) -> str:
    first = planned.writes[0]
    of = getattr(first, "revision", "")
    return f"{type(first).__name__}{f' of {of}' if of else ''}"


def stage(seen: FoundService) -> tuple[TargetRevision, ...]:
    """The goal of the present stage."""
    return seen.knative.record.spec.stage_target_revisions if seen.knative.orchestrator is not None else ()


def pods(seen: FoundService) -> list[RevisionPodRow]:
    """The pods of all revisions that have some."""
    knative = seen.knative
    sides = {each.revision_name: each.direction or "up" for each in stage(seen)}
    return [
        RevisionPodRow(
            side=sides.get(name, ""), revision=name, pod=pod.metadata.name, state=state, reason=why
        )
        for name in sorted(knative.pods)
        for pod in knative.pods[name]
        for state, why in (_state(pod),)
    ]
