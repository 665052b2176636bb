"""The record of a rollout: its words, and the stages and ends that follow from where it stands: pure.

What must never break: a revision that was reverted is no target until somebody asks for it by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

import msgspec
from msgspec.structs import replace

from farmd.kubernetes.knative import scales, traffic
from farmd.kubernetes.knative.bounds import fresh
from farmd.kubernetes.knative.facts import Heard, Snapshot, Sync
from farmd.kubernetes.knative.objects import (
    CAUSE,
    FOLLOW,
    GENERATION_LABEL,
    HEARD,
    MANAGER,
    PAUSED,
    PROMOTE,
    REFUSED,
    RESUMED,
    RETRY,
    REVERT,
    AutoscalerStatus,
    KnativeService,
    Meta,
    Orchestrator,
    OrchestratorSpec,
    PodAutoscaler,
    Revision,
    StageAutoscaler,
)
from farmd.kubernetes.knative.traffic import Revisions, actual
from farmd.kubernetes.objects import managers_of, seconds_since_epoch
from farmd.rollout.staging import (
    RolloutOrchestrator,
    Scales,
    TargetRevision,
    last_stage_complete,
    next_stage,
    remove_non_traffic_rev,
)
from farmd.rollout.steps import RESOURCE_UTIL_STRATEGY
from store.times import rfc3339

MOST_REFUSED = 10
ALL = 100
# A stage of two revisions moves all that there is; one of three leaves a part.
MANY = 3
# What people say of one rollout: such words count in a freeze, too.
ACTS = (RESUMED, REVERT, PROMOTE, RETRY)
BY_PERSON = "a person reverted it"


def paused(knative: Snapshot) -> bool:
    """Whether a person holds the rollout."""
    return knative.record.metadata.annotations.get(PAUSED, "false") not in ("", "false")


def leaves(knative: Snapshot) -> bool:
    """Whether the record is to go, or the service is opted in no more: people get back what they gave."""
    return knative.record.metadata.terminating or not knative.service.enabled


def said_at(record: Orchestrator, service: KnativeService | None = None) -> float:
    """When a person last said something (seconds since the epoch; 0: never): by an annotation of the record,
    or by traffic that they wrote, which is on record once farmd has taken it back. Traffic that is written
    again and again is no person's.
    """
    owners = [
        each
        for word in ACTS
        for each in managers_of(record.metadata, "metadata", "annotations", word)
        if word in record.metadata.annotations
    ]
    if service is not None:
        traffic = managers_of(service.metadata, "spec", "traffic")
        owners += [each for each in traffic if each.manager != MANAGER]
    words = _heard(record).times
    times = (*(each.time for each in owners), *(words if len(words) == 1 else ()))
    return max((seconds_since_epoch(each) for each in times), default=0.0)


def refused(knative: Snapshot) -> tuple[str, ...]:
    """Revisions that were reverted, oldest first."""
    record = knative.orchestrator
    text = record.metadata.annotations.get(REFUSED, "") if record is not None else ""
    return tuple(filter(None, text.split(",")))


def back(knative: Snapshot) -> bool:
    """Whether the rollout goes, or went, back: what it is to follow was reverted."""
    configuration = knative.configuration
    newest = configuration.status.latest_created_revision_name if configuration is not None else ""
    follow = knative.record.metadata.annotations.get(FOLLOW, traffic.LATEST)
    asked = {each.revision_name or newest for each in traffic.entries(follow)}
    return bool(asked & set(refused(knative)))


def heard(knative: Snapshot) -> Heard:
    """What was said last; nothing, where it does not decode."""
    return _heard(knative.orchestrator) if knative.orchestrator is not None else Heard()


def _heard(record: Orchestrator) -> Heard:
    try:
        return msgspec.json.decode(record.metadata.annotations.get(HEARD, "{}"), type=Heard)
    except msgspec.DecodeError:
        return Heard()


def newcomers(knative: Snapshot) -> tuple[str, ...]:
    """Revisions that no record names yet, and that are not older than where the rollout goes or what was
    reverted.
    """
    record = knative.orchestrator
    if record is None:
        return ()
    spec, status = record.spec, record.status
    lists = (spec.initial_revisions, spec.target_revisions, spec.stage_target_revisions)
    named = {
        each.revision_name
        for each in (*(one for many in lists for one in many), *status.stage_revision_status)
    }
    named |= set(refused(knative))
    known = [knative.revisions[name] for name in named if name in knative.revisions]
    newest = max(map(_order, known), default=(0, 0.0))
    unknown = knative.revisions.keys() - named
    return tuple(name for name in sorted(unknown) if _order(knative.revisions[name]) >= newest)


def _order(revision: Revision) -> tuple[int, float]:
    """By the template's generation: several may come in one second, which is all that a time tells."""
    meta = revision.metadata
    generation = meta.labels.get(GENERATION_LABEL, "")
    return int(generation) if generation.isdecimal() else 0, seconds_since_epoch(meta.creation_timestamp)


def staged(
    knative: Snapshot, spec: OrchestratorSpec, finished: Sequence[TargetRevision], ratio: int = 0
) -> OrchestratorSpec | None:
    """The record with the stage that is due after ``finished``; None: a scale is not known yet."""
    settings = knative.settings
    spec = _bounded(knative, spec)
    rollout = RolloutOrchestrator(
        name=knative.service.metadata.name,
        initial_revisions=spec.initial_revisions,
        target_revisions=spec.target_revisions,
        stage_target_revisions=spec.stage_target_revisions,
        stage_revision_status=tuple(finished),
        stage_ready=True if finished else None,
    )
    steps = len(spec.target_revisions) == 1 and settings.enabled
    start = [each for each in (finished or spec.initial_revisions) if each.percent]
    known = scales.scales(knative, start)
    if known is None and steps and scales.target_names(start) != scales.target_names(spec.target_revisions):
        return None
    finish = knative.now + settings.timeout
    found = next_stage(
        rollout, ratio or settings.ratio, known or _nothing(start), finish, staged=settings.enabled
    )
    return replace(
        spec,
        stage_target_revisions=found.stage_target_revisions or spec.target_revisions,
        target_finish_time=rfc3339(found.target_finish_time) if found.target_finish_time else None,
        rollout_strategy=settings.strategy,
    )


def at_once(knative: Snapshot, spec: OrchestratorSpec) -> OrchestratorSpec | None:
    """The record with a stage in which all others go; None: a scale is not known yet. A stage of all shares
    lets only one of several revisions go.
    """
    (target,) = spec.target_revisions
    found = staged(knative, spec, (), ratio=ALL)
    if found is None or len(found.stage_target_revisions) < MANY:
        return found
    stage = tuple(
        replace(each, percent=100, direction="up", target_replicas=target.min_scale)
        if each.revision_name == target.revision_name
        else replace(each, percent=None, direction="down", target_replicas=0, tag="")
        for each in found.stage_target_revisions
    )
    return replace(found, stage_target_revisions=stage)


def _nothing(start: Sequence[TargetRevision]) -> Scales:
    return Scales({each.revision_name: 0 for each in start})


def _bounded(knative: Snapshot, spec: OrchestratorSpec) -> OrchestratorSpec:
    """The record with the final bounds as they are now."""
    initial, wanted = (fresh(knative, each) for each in (spec.initial_revisions, spec.target_revisions))
    return replace(spec, initial_revisions=initial, target_revisions=wanted)


def turned_back(knative: Snapshot, cause: str) -> Sync | None:
    """Back to where the rollout began, for good; None: there is no such place, or it goes there already.

    The action is ``none`` while it is not known how many pods a revision has.
    """
    spec, before = knative.record.spec, refused(knative)
    leaving = [each.revision_name for each in spec.target_revisions]
    shares = [
        each
        for each in spec.initial_revisions
        if each.percent
        and each.revision_name not in (*leaving, *before)
        and knative.ready(each.revision_name)
    ]
    if not shares:
        return None
    start = max(shares, key=lambda each: each.percent or 0)
    target = replace(start, percent=100, latest_revision=False, direction="", target_replicas=None)
    found = staged(knative, traffic.update_initial_final_target_rev(knative, (target,)), ())
    if found is None:
        return Sync()
    kept = [name for name in before if name not in leaving] + leaving
    annotations = {REFUSED: ",".join(kept[-MOST_REFUSED:]), CAUSE: cause or None}
    return Sync(action="back", spec=found, annotations=annotations, reason=cause or BY_PERSON)


# The stages that a rollout has ahead of it, if each gets the pods that it asks for: pure.
#
# For people alone: ``rollout plan``, and how far a rollout is. No farm acts on it.

MOST_STAGES = 200


@dataclass(frozen=True, slots=True)
class Stage:
    """The goal of one stage; ``peak`` is how many pods there are at once, as far as bounds decide it."""

    revisions: Revisions
    peak: int


def ahead(knative: Snapshot, spec: OrchestratorSpec) -> tuple[Stage, ...]:
    """The stage of ``spec`` and those after it."""
    found: list[Stage] = []
    while spec.stage_target_revisions and len(found) < MOST_STAGES:
        stage = spec.stage_target_revisions
        before, knative = knative, _reached(knative, stage)
        found.append(Stage(stage, _peak(before, knative, spec)))
        finished = remove_non_traffic_rev(stage)
        if last_stage_complete(finished, spec.target_revisions):
            break
        following = staged(knative, spec, finished)
        if following is None or following.stage_target_revisions == stage:
            break
        spec = following
    return tuple(found)


def position(knative: Snapshot) -> tuple[int, int]:
    """The number of the present stage, and of all: as if the rollout had begun with the pods of today."""
    spec = knative.record.spec
    left = len(ahead(knative, spec))
    start = [each for each in spec.initial_revisions if each.percent]
    pods = sum(actual(knative, each.revision_name) or 0 for each in (*start, *spec.target_revisions))
    for each in start:
        share = each.min_scale if each.min_scale is not None else pods * (each.percent or 0) // 100
        knative = _scaled(knative, each.revision_name, max(1, share))
    whole = staged(knative, msgspec.structs.replace(spec, stage_target_revisions=()), ())
    total = max(left, len(ahead(knative, whole)) if whole is not None else 0)
    return total - left + 1, total


def _reached(knative: Snapshot, stage: Revisions) -> Snapshot:
    """Everything once a stage is done."""
    for each in stage:
        knative = _scaled(knative, each.revision_name, _pods(knative, each))
    return knative


def _pods(knative: Snapshot, goal: TargetRevision) -> int:
    """How many pods a revision has at the end of a stage."""
    if goal.percent is None:
        return 0
    if goal.target_replicas is not None:
        return goal.target_replicas
    stands = actual(knative, goal.revision_name) or 0
    return stands if goal.direction == "stay" else max(stands, goal.min_scale or 0)


def _scaled(knative: Snapshot, name: str, pods: int) -> Snapshot:
    """With so many pods of a revision, and bounds of a stage."""
    meta, status = Meta(name=name), AutoscalerStatus(desired_scale=pods, actual_scale=pods)
    return replaced(
        knative,
        autoscalers={**knative.autoscalers, name: PodAutoscaler(metadata=meta, status=status)},
        revisions={**knative.revisions, name: knative.revisions.get(name, Revision(metadata=meta))},
        spas={**knative.spas, name: knative.spas.get(name, StageAutoscaler(metadata=meta))},
    )


def _peak(before: Snapshot, after: Snapshot, spec: OrchestratorSpec) -> int:
    """The most pods at once in a stage: what grows comes before what shrinks goes, or after it."""
    stage = {each.revision_name for each in spec.stage_target_revisions}
    pairs = [(actual(before, name) or 0, actual(after, name) or 0) for name in stage]
    # What a jump does not name goes in it.
    gone = {each.revision_name for each in spec.initial_revisions} - stage
    pairs += [(actual(before, name) or 0, 0) for name in gone]
    if spec.rollout_strategy == RESOURCE_UTIL_STRATEGY:
        return max(sum(old for old, _ in pairs), sum(new for _, new in pairs))
    return sum(max(pair) for pair in pairs)
