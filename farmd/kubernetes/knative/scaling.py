"""A Knative Service as what the steps of ``farmd.rollout`` scale: which writes a stage still lacks: pure.

A step's bounds go on the StagePodAutoscaler, the record of them, and then on what Knative's autoscaler reads.
What must never break: final bounds are on record before the first change of them; bounds of what shrinks fall
only once the route shows the shares of the stage, and no bounds fall of what bears more traffic than is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from farmd.kubernetes.knative import bounds, record, scales, traffic
from farmd.kubernetes.knative.bounds import DRAINED, MARKER, written
from farmd.kubernetes.knative.facts import (
    Bounds,
    Drop,
    Reap,
    RevisionBounds,
    Snapshot,
    StageBounds,
    Traffic,
    Write,
)
from farmd.kubernetes.knative.objects import FINAL, UNREACHABLE, RevisionPod, routed
from farmd.rollout.staging import Revisions, RolloutOrchestrator, StagePodAutoscaler, retrieve_revs_up_down
from farmd.rollout.steps import (
    RESOURCE_UTIL_STRATEGY,
    Rollout,
    RolloutStep,
    ScaleDownStep,
    ScaleUpStep,
    is_stage_scale_up_ready,
)

BOUNDS = (StageBounds, RevisionBounds)


@dataclass(slots=True)
class KnativeTarget:
    """``farmd.rollout.steps.ScaleTarget``: what it ``planned`` is what is missing until bounds stand."""

    knative: Snapshot
    planned: list[Write] = field(default_factory=list)

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        """Its bounds and scale; None where there are none yet, or a planned change makes them uncertain. The
        pod that a drained one never loses is none that is waited for.
        """
        if any(isinstance(each, BOUNDS) and each.revision == revision for each in self.planned):
            return None
        found = scales.autoscaler(self.knative, revision)
        if found is None or Bounds(found.stage_min, found.stage_max) != DRAINED:
            return found
        left = _left(self.knative, revision)
        counts = [None if each is None else max(0, each - left) for each in (found.desired, found.actual)]
        return replace(found, desired=counts[0], actual=counts[1])

    def scale(self, wanted: StagePodAutoscaler) -> None:
        """Plan the bounds of a stage. A revision that is gone needs none."""
        if wanted.name not in self.knative.revisions:
            return
        lacks = lacking(self.knative, wanted.name, Bounds(wanted.stage_min, wanted.stage_max))
        self.planned += [each for each in lacks if each not in self.planned]


def lacking(knative: Snapshot, name: str, stage: Bounds) -> list[Write]:
    """The writes until a revision has the bounds of a stage: the record of them first."""
    spa, final = knative.spas.get(name), bounds.final(knative, name)
    found: list[Write] = []
    known = spa is not None and (
        Bounds(spa.spec.stage_min_scale, spa.spec.stage_max_scale),
        spa.metadata.annotations.get(FINAL),
    ) == (stage, written(final))
    if not known:
        found.append(StageBounds(name, stage, final))
    wanted = bounds.wanted(knative, name, stage)
    if bounds.bearer(knative, name) is not None and bounds.standing(knative, name) != wanted:
        found.append(RevisionBounds(name, wanted))
    return found


@dataclass(frozen=True, slots=True)
class ShiftTrafficStep(RolloutStep):
    """The route shows the shares of the stage, and what grows is ready to bear its share."""

    knative: Snapshot

    def execute(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> None:
        """Nothing: traffic that is due is written whatever step is under way."""

    def verify(self, rollout: RolloutOrchestrator, up: Revisions, down: Revisions) -> bool:
        """Whether no revision replaces one that is not ready, and the route has settled."""
        del rollout, down
        ready = all(self.knative.ready(name) for name, each in up.items() if each.percent)
        return ready and traffic.shown(self.knative)

    def modify_status(self, rollout: RolloutOrchestrator, ready: bool) -> RolloutOrchestrator:
        """The scale alone has conditions of its own."""
        del ready
        return rollout


def reconciled(knative: Snapshot) -> tuple[RolloutOrchestrator, bool, tuple[Write, ...]]:
    """The rollout with its conditions, whether the stage is done, and the writes that it lacks.

    On the way back the former revision gets its bounds first, also where all must fit in today's room.
    """
    target = KnativeTarget(knative)
    found = scales.rollout(knative)
    up, down = retrieve_revs_up_down(found.stage_target_revisions)
    grow, shift, shrink = ScaleUpStep(target), ShiftTrafficStep(knative), ScaleDownStep(target)
    tight = found.rollout_strategy == RESOURCE_UTIL_STRATEGY and not record.back(knative)
    strategy = Rollout((shrink, grow, shift) if tight else (grow, shift, shrink))
    found, done = strategy.reconcile(found, up, down)
    early = [] if tight else [each for each in target.planned if _early(knative, each)]
    writes = [*shifted(knative), *(each for each in target.planned if each not in early)]
    if not done:
        writes += [Reap(pod) for name in down for pod in _reaped(knative, name, up)]
    return found, done and not (writes or early), tuple(writes)


def _early(knative: Snapshot, write: Write) -> bool:
    """Whether bounds would fall of a revision that bears more of the traffic than is due: somebody else sent
    it there, and the route has not followed farmd yet.
    """
    return isinstance(write, BOUNDS) and _laden(knative, write.revision) and falls(knative, write)


def _laden(knative: Snapshot, name: str) -> bool:
    due = routed(traffic.pinned(knative)) if knative.orchestrator is not None else {}
    return knative.routed.get(name, 0) > due.get(name, 0)


def stands(knative: Snapshot) -> bool:
    """Whether what grew in the stage still has its pods, and is ready. A StagePodAutoscaler that somebody
    deleted is made anew by the next stage.
    """
    up, _ = retrieve_revs_up_down(scales.rollout(knative).stage_target_revisions)
    return all(
        knative.ready(name)
        and ((spa := scales.autoscaler(knative, name)) is None or is_stage_scale_up_ready(spa, each))
        for name, each in up.items()
    )


def shifted(knative: Snapshot) -> list[Write]:
    """The traffic, where it is not as it is due; what people asked by it is on record by now."""
    due = traffic.pinned(knative)
    if not due or (traffic.ours(knative) and traffic.equal(due, knative.service.spec.traffic)):
        return []
    return [Traffic(due)]


def _reaped(knative: Snapshot, name: str, up: Revisions) -> list[RevisionPod]:
    """Pods of what shrinks that are over their time, or whose room the newcomer's first pod needs."""
    marked = knative.record.spec.rollout_strategy == RESOURCE_UTIL_STRATEGY and any(
        (spa := scales.autoscaler(knative, each)) is not None
        and Bounds(spa.stage_min, spa.stage_max) == MARKER
        for each in up
    )
    found = scales.terminating(knative, name)
    return [pod for pod in found if marked or scales.ends_at(pod) < knative.now]


def reaps_at(knative: Snapshot) -> float | None:
    """When a pod that ends is to be deleted (seconds since the epoch)."""
    names = [each.revision_name for each in knative.record.spec.stage_target_revisions]
    times = [scales.ends_at(pod) for name in names for pod in scales.terminating(knative, name)]
    return min(times, default=None)


def kept(knative: Snapshot) -> tuple[Write, ...]:
    """What brings bounds back that somebody rewrote while nothing moves, as the stage last wrote them; those
    of a rollout that is over are final, and no stage's.
    """
    if scales.rollout(knative).ready is True:
        return ()
    found: list[Write] = []
    stage = scales.target_names(knative.record.spec.stage_target_revisions)
    for name in sorted(stage & knative.revisions.keys() & knative.spas.keys()):
        spec = knative.spas[name].spec
        found += lacking(knative, name, Bounds(spec.stage_min_scale, spec.stage_max_scale))
    return tuple(each for each in found if not _early(knative, each))


def holds(knative: Snapshot) -> tuple[Write, ...]:
    """Bounds of a revision that came beside one that serves: one pod at most, until the record names it.

    One that bears traffic, because nobody held it back in time, keeps its pods until that is taken from it.
    """
    if knative.route is None or not knative.route.status.traffic:
        return ()
    found: list[Write] = []
    for name in record.newcomers(knative):
        least, most = bounds.final(knative, name)
        tight = knative.settings.strategy == RESOURCE_UTIL_STRATEGY
        if (tight or (least or 0) > 1) and not _laden(knative, name):
            found += lacking(knative, name, MARKER if tight else Bounds(1, most))
    return tuple(found)


def settled(knative: Snapshot) -> tuple[Write, ...]:
    """What is left to do at the end: final bounds of what stays and of what is drained, and the traffic."""
    stays = scales.target_names(knative.record.spec.target_revisions)
    found: list[Write] = [*shifted(knative)]
    for name in sorted(stays & knative.revisions.keys() & _staged(knative)):
        found += lacking(knative, name, bounds.unmarked(bounds.final(knative, name)))
    return (*found, *drained(knative, stays))


def drained(knative: Snapshot, kept: set[str]) -> tuple[Write, ...]:
    """The missing writes of revisions that have bounds of a stage and no longer belong to it."""
    found: list[Write] = []
    held = set(record.newcomers(knative))
    for name in sorted(_staged(knative) - kept - held):
        if name not in knative.revisions:
            found.append(Drop(name))
        elif _empty(knative, name):
            found += _given_back(knative, name)
        elif not _laden(knative, name):
            found += lacking(knative, name, DRAINED)
    return tuple(found)


def _staged(knative: Snapshot) -> set[str]:
    """The revisions with bounds of a stage, also of one whose StagePodAutoscaler somebody deleted."""
    return {*knative.spas, *(name for name in knative.revisions if bounds.narrowed(knative, name))}


def _empty(knative: Snapshot, name: str) -> bool:
    """Whether a revision has no pods, and gets none by bounds of its own: its autoscaler knows that no route
    reaches it, which it learns later than the route. One that none ever reached gets its least pods. One with
    a tag is reached for good, and gets what people gave it.
    """
    scale = knative.autoscalers.get(name)
    if name in knative.routed:
        return False
    if scale is None or name in knative.tagged:
        return True
    pods = max(scale.status.desired_scale or 0, traffic.actual(knative, name) or 0)
    return pods <= _left(knative, name) and scale.spec.reachability == UNREACHABLE


def _left(knative: Snapshot, name: str) -> int:
    """How many pods a revision keeps that is drained: one where requests may still come by its tag."""
    return int(bounds.never_empty(knative, name) or name in knative.tagged)


def released(knative: Snapshot) -> tuple[Write, ...]:
    """What it takes to leave a service as people asked: the final bounds of all revisions, and no stage's on
    record, which a pause would bring back.
    """
    return tuple(
        each
        for name in sorted(_staged(knative) & knative.revisions.keys())
        for each in lacking(knative, name, bounds.unmarked(bounds.final(knative, name)))
    )


def _given_back(knative: Snapshot, name: str) -> list[Write]:
    """The final bounds of a revision, on record first: what farmd has written is nobody else's any more."""
    if not bounds.narrowed(knative, name):
        return []
    spa, final = knative.spas.get(name), bounds.final(knative, name)
    known = spa is not None and spa.metadata.annotations.get(FINAL) == written(final)
    record = [] if known else [StageBounds(name, bounds.unmarked(final), final)]
    return [*record, RevisionBounds(name, final)]


def falls(knative: Snapshot, write: Write) -> bool:
    """Whether a write takes pods or traffic away, which a freeze forbids (R18)."""
    if isinstance(write, RevisionBounds):
        return _below(write.bounds, bounds.standing(knative, write.revision))
    if isinstance(write, StageBounds):
        return _below(
            bounds.wanted(knative, write.revision, write.bounds), bounds.standing(knative, write.revision)
        )
    return isinstance(write, Traffic | Reap)


def _below(after: Bounds, before: Bounds) -> bool:
    unlimited = float("inf")
    most = [each.most or unlimited for each in (after, before)]
    return (after.least or 0) < (before.least or 0) or most[0] < most[1]
