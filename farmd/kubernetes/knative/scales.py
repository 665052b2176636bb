"""What a decision asks of the facts: scales, pods that end, a newcomer that fails: pure.

A scale that is missing or below 0 is unknown, and the decision waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from farmd.kubernetes.knative.bounds import (
    AUTOSCALER,
    LAST_STAGE_READY,
    NOT_READY,
    SCALE_READY,
    STAGE_DOWN_READY,
    STAGE_READY,
    STAGE_UP_READY,
    ConditionText,
    fresh,
    known,
    marked,
)
from farmd.kubernetes.knative.facts import Snapshot
from farmd.kubernetes.knative.objects import RevisionPod, StageAutoscaler, StageAutoscalerStatus, condition
from farmd.kubernetes.knative.traffic import actual
from farmd.kubernetes.objects import seconds_since_epoch
from farmd.rollout.staging import RolloutOrchestrator, Scales, StagePodAutoscaler, TargetRevision
from farmd.rollout.steps import AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY
from store.times import seconds_of

OVER = ("Succeeded", "Failed")


def rollout(knative: Snapshot) -> RolloutOrchestrator:
    """The record as the steps of ``farmd.rollout`` see it. A stage that nobody observed yet is under way."""
    record = knative.record
    found = record.status.conditions if record.observed else ()
    strategy = record.spec.rollout_strategy
    return RolloutOrchestrator(
        name=record.metadata.name,
        namespace=record.metadata.namespace,
        initial_revisions=record.spec.initial_revisions,
        target_revisions=record.spec.target_revisions,
        stage_target_revisions=fresh(knative, record.spec.stage_target_revisions),
        stage_revision_status=record.status.stage_revision_status,
        target_finish_time=seconds_since_epoch(record.spec.target_finish_time),
        rollout_strategy=strategy if strategy == RESOURCE_UTIL_STRATEGY else AVAILABILITY_STRATEGY,
        stage_scale_up_ready=known(found, STAGE_UP_READY),
        stage_scale_down_ready=known(found, STAGE_DOWN_READY),
        stage_ready=known(found, STAGE_READY),
        last_stage_ready=known(found, LAST_STAGE_READY),
    )


def autoscaler(knative: Snapshot, name: str) -> StagePodAutoscaler | None:
    """A revision's bounds of its stage and its scale. A revision that is gone has no pods."""
    found = knative.autoscalers.get(name)
    gone = name not in knative.revisions and found is None
    spa = knative.spas.get(name, StageAutoscaler() if gone else None)
    if spa is None:
        return None
    wanted = found.status.desired_scale if found is not None else None
    return StagePodAutoscaler(
        name=name,
        namespace=spa.metadata.namespace,
        owner=knative.service.metadata.name,
        labels=dict(spa.metadata.labels),
        stage_min=spa.spec.stage_min_scale,
        stage_max=spa.spec.stage_max_scale,
        desired=0 if gone else wanted if wanted is None or wanted >= 0 else None,
        actual=0 if gone else actual(knative, name),
        terminating=len(terminating(knative, name)),
    )


def mirrored(knative: Snapshot, name: str) -> StageAutoscalerStatus:
    """The status of a StagePodAutoscaler: what the revision's autoscaler says, which is all that is known."""
    spa = knative.spas[name]
    found = autoscaler(knative, name)
    assert found is not None
    known = found.desired is not None and found.actual is not None
    mark = ConditionText(True) if known else ConditionText(None, NOT_READY)
    return StageAutoscalerStatus(
        desired_scale=found.desired if known else spa.status.desired_scale,
        actual_scale=found.actual if known else spa.status.actual_scale,
        replicas_terminating=found.terminating,
        conditions=marked(spa.status.conditions, {SCALE_READY: mark}, AUTOSCALER, knative.now),
        observed_generation=spa.metadata.generation,
    )


def terminating(knative: Snapshot, name: str) -> list[RevisionPod]:
    """The pods of a revision that are about to end, and hold their room still."""
    found = knative.pods.get(name, ())
    return [pod for pod in found if pod.metadata.terminating and pod.status.phase not in OVER]


def scales(knative: Snapshot, revisions: Iterable[TargetRevision]) -> Scales | None:
    """How many pods these revisions have; None: of one it is not known."""
    replicas = {}
    for each in revisions:
        name = each.revision_name
        found = actual(knative, name) if name in knative.revisions else 0
        if found is None:
            return None
        replicas[name] = found
    return Scales(replicas, frozenset(knative.spas))


def failing(knative: Snapshot, name: str) -> str:
    """Why a revision does not get its pods, if it is at fault; empty: nothing shows that.

    Want of room is no fault of its own; where pods must fit in the room of others, it is a reason to give
    that room back.
    """
    revision = knative.revisions.get(name)
    found = revision.status.conditions if revision is not None else ()
    container, resources = condition(found, "ContainerHealthy"), condition(found, "ResourcesAvailable")
    if container.status == "False":
        return f"{name}: {container.reason}: {container.message}"
    room = _no_room(knative, name)
    if room and knative.record.spec.rollout_strategy == RESOURCE_UTIL_STRATEGY:
        return f"{name}: {room}"
    if resources.status == "False" and not room:
        return f"{name}: {resources.reason}: {resources.message}"
    return ""


def _no_room(knative: Snapshot, name: str) -> str:
    """A pod that no node has room for; empty: there is none."""
    for pod in knative.pods.get(name, ()):
        for each in pod.status.conditions:
            if (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable"):
                return f"{pod.metadata.name}: {each.message or each.reason}"
    return ""


def short(knative: Snapshot) -> str:
    """What a stage lacks, for people: a pod without room, or pods that are not there."""
    stage = knative.record.spec.stage_target_revisions
    for each in stage:
        name = each.revision_name
        if room := _no_room(knative, name):
            return room
        if each.direction in ("", "up") and name not in knative.revisions:
            return f"{name} is gone"
        if each.direction in ("", "up") and each.target_replicas is not None:
            have = actual(knative, name)
            if have is None:
                return f"the number of pods of {name} is unknown"
            if have < each.target_replicas:
                return f"{name} has {have} of {each.target_replicas} pods"
    return ", ".join(f"{each.revision_name} {each.direction or 'up'}" for each in stage)


def since(knative: Snapshot) -> float:
    """When the present stage began (seconds since the epoch)."""
    found = condition(knative.record.status.conditions, STAGE_READY).last_transition_time
    return seconds_of(found) if found else knative.now


def ends_at(pod: RevisionPod) -> float:
    """When a pod that ends is killed (seconds since the epoch)."""
    return seconds_since_epoch(pod.metadata.deletion_timestamp)


def target_names(revisions: Iterable[TargetRevision]) -> set[str]:
    """The names of revisions."""
    return {each.revision_name for each in revisions}


def seconds(text: str | None) -> float | None:
    """A time of the record in seconds since the epoch; None for none."""
    return seconds_since_epoch(text) or None


# Notices when a newcomer last grew, so that a stage without progress fails some day.
#
# What a worker has seen is lost with its claim: the next one begins to count, and gives a stage all of its
# time.


@dataclass(slots=True)
class Growth:
    """When one worker last saw a newcomer grow, in seconds since the epoch by the API server's clock."""

    risen: float
    _target: str = ""
    _most: int = 0

    def seen(self, knative: Snapshot) -> Snapshot:
        """The same, with when the newcomer last grew. Pods that come back after they went are no growth: a
        newcomer that breaks again and again would never fail.
        """
        record = knative.orchestrator
        names = target_names(record.spec.target_revisions) if record is not None else set()
        pods, target = sum(actual(knative, name) or 0 for name in names), ",".join(sorted(names))
        if target != self._target or pods > self._most:
            self.risen = knative.now
        self._most = max(pods, self._most if target == self._target else 0)
        self._target = target
        return replace(knative, risen=self.risen)
