"""Bounds of a revision, and the conditions that tell of them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from farmd.kubernetes.knative.facts import Bounds, RevisionBounds, Snapshot, Write
from farmd.kubernetes.knative.objects import (
    ALIASES,
    CLASS,
    FINAL,
    HPA,
    MANAGER,
    MAX_SCALE,
    MIN_SCALE,
    UNKNOWN,
    KnativeCondition,
    KnativeService,
    PodAutoscaler,
    Revision,
    condition,
)
from farmd.kubernetes.objects import ManagedFields, managers_of
from farmd.rollout.staging import TargetRevision
from store.mistakes import shown
from store.times import rfc3339

# Bounds of a revision: those that people gave it, and those of a stage within them: pure (Knative's
# ``pkg/reconciler/autoscaling``).
#
# What must never break: bounds of a stage only narrow the final ones, and no final bound is lost. A bound
# that farmd owns by ``managedFields`` is a stage's, and its final value stands on the StagePodAutoscaler; a
# bound that another manager owns is final, whoever wrote it and when, but for what Knative copied of
# farmd's.

# A marker of Knative's extension: the revision is to get no pods before those of the others are gone.
MARKER = Bounds(0, 0)
DRAINED = Bounds(0, 1)
_LARGEST = 2**31 - 1


def read_int_annotation(annotations: Mapping[str, str], key: str) -> int | None:
    """A bound among annotations, by its name or its older one; None: there is none, or it is no number."""
    text = annotations.get(key, annotations.get(ALIASES[key], ""))
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= _LARGEST else None


def read_bounds(annotations: Mapping[str, str]) -> Bounds:
    """Both bounds among annotations."""
    return Bounds(read_int_annotation(annotations, MIN_SCALE), read_int_annotation(annotations, MAX_SCALE))


def read_service_bounds(service: KnativeService) -> Bounds:
    """The bounds that the next revision of a service gets."""
    return read_bounds(service.spec.template.metadata.annotations)


def merge(final: Bounds, stage: Bounds) -> Bounds:
    """The narrower of both (seed ``GetScaleBounds``): a stage never raises a bound.

    A most of 0 is no bound. A stage of 0 to 0 means none at all, and Knative knows no less than 0 to 1.
    """
    stage = DRAINED if stage == MARKER else stage
    least, most = final
    if stage.least is not None and least is not None and stage.least < least:
        least = stage.least
    if stage.most and (not most or stage.most < most):
        most = stage.most
    return Bounds(least, most)


def unmarked(final: Bounds) -> Bounds:
    """Final bounds as those of a stage: a most of 0 is none, because 0 to 0 would be the marker."""
    return Bounds(final.least, final.most or None)


def bearer(knative: Snapshot, name: str) -> Revision | PodAutoscaler | None:
    """The object on which the bounds of a revision are written."""
    if knative.bounds_on_revisions:
        return knative.revisions.get(name)
    return knative.autoscalers.get(name)


def standing(knative: Snapshot, name: str) -> Bounds:
    """The bounds that a revision has now."""
    found = bearer(knative, name)
    return read_bounds(found.metadata.annotations) if found is not None else Bounds()


def wanted(knative: Snapshot, name: str, stage: Bounds) -> Bounds:
    """The bounds that a revision is to have in a stage. An autoscaler of the class HPA knows no 0; one that
    people gave stays.
    """
    at_rest = final(knative, name)
    found = merge(at_rest, stage)
    return (
        Bounds(1, found.most) if found.least == 0 and at_rest.least and never_empty(knative, name) else found
    )


def never_empty(knative: Snapshot, name: str) -> bool:
    """Whether a revision keeps one pod when nothing needs it: an autoscaler of the class HPA ends none."""
    revision = knative.revisions.get(name)
    return revision is not None and revision.metadata.annotations.get(CLASS) == HPA


def final(knative: Snapshot, name: str) -> Bounds:
    """The bounds that a revision has at rest."""
    if name not in knative.finals:
        found = standing(knative, name)
        least = found.least if not _ours(knative, name, MIN_SCALE) else _recorded(knative, name).least
        most = found.most if not _ours(knative, name, MAX_SCALE) else _recorded(knative, name).most
        knative.finals[name] = Bounds(least, most)
    return knative.finals[name]


def _ours(knative: Snapshot, name: str, key: str) -> bool:
    """Whether a bound is a stage's: farmd wrote it, or Knative copied it from a revision on which farmd did.

    A version of Knative that takes bounds from revisions leaves such copies to an older one that follows it.
    """
    found, revision = bearer(knative, name), knative.revisions.get(name)
    if found is None:
        return False
    writers = _writers(found, key)
    copies = isinstance(found, PodAutoscaler) and revision is not None and MANAGER in _writers(revision, key)
    makers = {each.manager for each in managers_of(found.metadata, "spec")}
    return MANAGER in writers or (copies and writers <= makers)


def _writers(found: Revision | PodAutoscaler, key: str) -> set[str]:
    return {each.manager for each in managers_of(found.metadata, "metadata", "annotations", key)}


def entries(knative: Snapshot, name: str) -> Iterator[ManagedFields]:
    """The entries of all who wrote a bound of a revision where it is read."""
    if (found := bearer(knative, name)) is not None:
        for key in (MIN_SCALE, MAX_SCALE):
            yield from managers_of(found.metadata, "metadata", "annotations", key)


def others(knative: Snapshot, name: str) -> set[tuple[str, str]]:
    """Who beside farmd wrote a bound of a revision where it is read, each with the time of its last write."""
    return {(each.manager, each.time or "") for each in entries(knative, name) if each.manager != MANAGER}


def _recorded(knative: Snapshot, name: str) -> Bounds:
    """The final bounds on record: of the StagePodAutoscaler, or, if somebody deleted that, of the lists. Then
    a newest revision that was held back has those of the template.
    """
    spa = knative.spas.get(name)
    if spa is not None and (text := spa.metadata.annotations.get(FINAL)) is not None:
        return parsed(text)
    if (record := knative.orchestrator) is not None:
        spec = record.spec
        for each in (*spec.target_revisions, *spec.initial_revisions, *spec.stage_target_revisions):
            if each.revision_name == name:
                return Bounds(each.min_scale, each.max_scale)
    stands, template = standing(knative, name), read_service_bounds(knative.service)
    held = [merge(template, stage) for stage in (DRAINED, Bounds(1, template.most), Bounds(1, 1))]
    return template if name == knative.newest and stands in held else stands


def narrowed(knative: Snapshot, name: str) -> bool:
    """Whether a revision has bounds of a stage."""
    return final(knative, name) != standing(knative, name)


def fresh(knative: Snapshot, revisions: Iterable[TargetRevision]) -> tuple[TargetRevision, ...]:
    """The target revisions with the final bounds as they are now: somebody may have changed them since."""
    return tuple(
        bounded(each, final(knative, each.revision_name)) if each.revision_name in knative.revisions else each
        for each in revisions
    )


def bounded(revision: TargetRevision, bounds: Bounds) -> TargetRevision:
    """The target revision with these final bounds."""
    least, most = unmarked(bounds)
    return replace(revision, min_scale=least, max_scale=most)


def written(bounds: Bounds) -> str:
    """Bounds as one text: ``10/30``; nothing stands for no bound."""
    return "/".join("" if each is None else str(each) for each in bounds)


def parsed(text: str) -> Bounds:
    """Bounds out of such a text."""
    least, _, most = text.partition("/")
    return Bounds(*(int(each) if each.isdecimal() else None for each in (least, most)))


def misspelt(knative: Snapshot) -> str:
    """A bound of one of the revisions that is no number, or bounds that exclude one another; empty: none."""
    for name, revision in sorted(knative.revisions.items()):
        annotations = revision.metadata.annotations
        for key in (MIN_SCALE, MAX_SCALE):
            text = annotations.get(key, annotations.get(ALIASES[key]))
            if text is not None and read_int_annotation(annotations, key) is None:
                return f"revision {name}: {key}: found {shown(text)}, expected a whole number"
        least, most = final(knative, name)
        if least is not None and most and least > most:
            return f"revision {name}: {MIN_SCALE}: found {least}, expected at most {most}, its {MAX_SCALE}"
    return ""


# Conditions of a RolloutOrchestrator and of a StagePodAutoscaler: pure (Knative's ``ConditionManager``).
#
# ``Ready`` follows from the conditions that it depends on: one that is False decides, then one that is not
# known, and the newest of these gives the reason. All others have the severity Info.

READY = "Ready"
STAGE_READY, LAST_STAGE_READY = "StageReady", "LastStageReady"
STAGE_UP_READY, STAGE_DOWN_READY = "StageScaleUpReady", "StageScaleDownReady"
SCALE_READY = "PodAutoscalerStageReady"
ORCHESTRATOR = (STAGE_READY, LAST_STAGE_READY)
AUTOSCALER = (SCALE_READY,)

START, ROLLING = "StageRevisionStart", "RevisionRollingInProgress"
# The reason of a rollout that a person paused.
HELD = "RolloutPaused"
STAGE_FAILED, FAILED = "StageRevisionRolloutFailed", "RevisionRolloutFailed"
NOT_READY = "PodAutoscalerStageNotReady"


class ConditionText(NamedTuple):
    """What a condition is to say; None: it is under way."""

    value: bool | None
    reason: str = ""
    message: str = ""


def marked(
    found: Sequence[KnativeCondition],
    marks: Mapping[str, ConditionText],
    dependents: Sequence[str],
    now: float,
) -> tuple[KnativeCondition, ...]:
    """The conditions with these marks, sorted by type. What does not change keeps the time of its change."""
    standing = {each.type: each for each in found if each.type != READY}
    for name in dependents:
        standing.setdefault(name, KnativeCondition(type=name, status=UNKNOWN))
    for name, mark in marks.items():
        wanted = KnativeCondition(
            type=name,
            status=UNKNOWN if mark.value is None else str(mark.value),
            severity="" if name in dependents else "Info",
            reason=mark.reason,
            message=mark.message,
        )
        standing[name] = _dated(standing.get(name), wanted, now)
    standing[READY] = _dated(condition(tuple(found), READY), _ready(standing, dependents), now)
    return tuple(standing[name] for name in sorted(standing))


def _ready(standing: Mapping[str, KnativeCondition], dependents: Sequence[str]) -> KnativeCondition:
    decisive = [standing[name] for name in dependents]
    for status in ("False", UNKNOWN):
        those = [each for each in decisive if each.status == status]
        if those:
            newest = max(those, key=lambda each: each.last_transition_time or "")
            return KnativeCondition(type=READY, status=status, reason=newest.reason, message=newest.message)
    return KnativeCondition(type=READY, status="True")


def _dated(before: KnativeCondition | None, wanted: KnativeCondition, now: float) -> KnativeCondition:
    if before is None or not before.last_transition_time:
        return msgspec.structs.replace(wanted, last_transition_time=rfc3339(now))
    if msgspec.structs.replace(before, last_transition_time=None) == wanted:
        return before
    return msgspec.structs.replace(wanted, last_transition_time=rfc3339(now))


def known(found: Sequence[KnativeCondition], name: str) -> bool | None:
    """What a condition says; None: it is under way, or missing."""
    return {"True": True, "False": False}.get(condition(tuple(found), name).status)


# Notices who writes bounds anew that a stage has set, so that people are told of a tool that always does.
#
# One write is a person's, and becomes the final bound of its revision; the stage's bound stands again after
# it. What a worker has seen is lost with its claim: the next one begins to count, and ends nothing before
# it knows.

MOST_REWRITES = 3
WINDOW_SECONDS = 600.0


@dataclass(slots=True)
class Contention:
    """What one worker saw since ``since``, in seconds since the epoch by the API server's clock."""

    since: float
    _last: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    _seen: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def note(self, knative: Snapshot, writes: Iterable[Write]) -> None:
        """Note what is about to be written, and who wrote there after this worker."""
        for name in [each.revision for each in writes if isinstance(each, RevisionBounds)]:
            found = others(knative, name)
            new = found - self._last.get(name, found)
            self._seen.setdefault(name, []).extend((knative.now, manager) for manager, _ in sorted(new))
            self._last[name] = found

    def told(self, now: float) -> str | None:
        """Who writes bounds again and again; empty: nobody; None: this worker has not seen enough to say."""
        for name, seen in sorted(self._seen.items()):
            self._seen[name] = recent = [each for each in seen if now - each[0] < WINDOW_SECONDS]
            if len(recent) >= MOST_REWRITES:
                managers = ", ".join(sorted({manager for _, manager in recent}))
                return f"the bounds of {name} are also written by {managers}"
        return "" if now - self.since >= WINDOW_SECONDS else None
