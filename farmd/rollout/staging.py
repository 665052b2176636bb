"""The arithmetic of Knative's stages: revisions, shares of traffic and replicas: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from farmd.runtime.errors import FarmdError

# What a staged rollout says of revisions: where it began, where it ends, and the goal of its stage.
#
# A revision is one version of what runs: a controller here, a revision of a Knative service there. These
# records are those of Knative's progressive rollout (``pkg/apis/serving/v1``). None, 0 and a missing entry
# are three different things: a percent of None is drained, a percent of 0 is kept ready without traffic.

Direction = Literal["", "up", "down", "stay"]
Revisions = Mapping[str, "TargetRevision"]

REVISION_LABEL, SERVICE_LABEL = "serving.knative.dev/revision", "serving.knative.dev/service"


class NoRevisionGrows(FarmdError):
    """A stage without a revision that grows leads nowhere."""

    code = "no_revision_grows"


class TargetRevision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A revision in a stage: its share of the traffic and its replicas at the stage's end.

    ``min_scale`` and ``max_scale`` bound the revision in the end, beyond the stage (None: not bounded). A
    ``direction`` of ``""`` means ``up``.
    """

    revision_name: str
    configuration_name: str = ""
    latest_revision: bool | None = None
    percent: int | None = None
    tag: str = ""
    url: str | None = None
    direction: Direction = ""
    target_replicas: int | None = None
    min_scale: int | None = None
    max_scale: int | None = None


class StagePodAutoscaler(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The bounds of a revision's replicas in a stage, and how many there are; None: unbounded, or not known.

    ``terminating``: pods that were removed and run still.
    """

    name: str
    namespace: str = ""
    owner: str = ""
    labels: dict[str, str] = {}
    stage_min: int | None = None
    stage_max: int | None = None
    desired: int | None = None
    actual: int | None = None
    terminating: int | None = None


class RolloutOrchestrator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rollout as its steps see it. Each condition is True, False, or None while it is under way.

    ``stage_target_revisions`` is the goal of the present stage, ``stage_revision_status`` what the last
    finished stage left; ``target_finish_time``: when a stage is overdue (seconds since the epoch; 0: never).
    """

    name: str
    namespace: str = ""
    initial_revisions: tuple[TargetRevision, ...] = ()
    target_revisions: tuple[TargetRevision, ...] = ()
    stage_target_revisions: tuple[TargetRevision, ...] = ()
    stage_revision_status: tuple[TargetRevision, ...] = ()
    target_finish_time: float = 0.0
    rollout_strategy: str = ""
    stage_scale_up_ready: bool | None = None
    stage_scale_down_ready: bool | None = None
    stage_ready: bool | None = None
    last_stage_ready: bool | None = None

    @property
    def ready(self) -> bool | None:
        """Whether the whole rollout is over; how one stage grows and shrinks does not count."""
        decisive = (self.stage_ready, self.last_stage_ready)
        return False if False in decisive else None if None in decisive else True


def retrieve_revs_up_down(revisions: Sequence[TargetRevision]) -> tuple[Revisions, Revisions]:
    """The revisions of a stage that grow and those that shrink, by name.

    Raises:
        NoRevisionGrows: none grows.
    """
    up = {each.revision_name: each for each in revisions if each.direction in ("", "up")}
    down = {each.revision_name: each for each in revisions if each.direction == "down"}
    if not up:
        found = ", ".join(f"{each.revision_name} {each.direction}" for each in revisions)
        raise NoRevisionGrows(f"found no revision that scales up, expected one; the stage is [{found}]")
    return up, down


def remove_non_traffic_rev(revisions: Sequence[TargetRevision]) -> tuple[TargetRevision, ...]:
    """A finished stage without what it drained; the next revision to shrink is the last one that stayed."""
    kept = [each for each in revisions if each.percent or (each.percent == 0 and each.latest_revision)]
    if len(kept) < len(revisions):
        stays = [number for number, each in enumerate(kept) if each.direction == "stay"]
        for number in stays[-1:]:
            kept[number] = msgspec.structs.replace(kept[number], direction="down")
    return tuple(kept)


def last_stage_complete(status: Sequence[TargetRevision], wanted: Sequence[TargetRevision]) -> bool:
    """Whether the stage that is finished is where the rollout ends."""
    if tuple(status) == tuple(wanted):
        return True
    whole = {each.revision_name for each in status if each.percent == 100}
    return bool(wanted) and wanted[0].percent == 100 and wanted[0].revision_name in whole


# Which stage comes next, from shares of traffic and replicas: pure (Knative's progressive rollout,
# ``pkg/reconciler/service``).
#
# One revision grows in each stage and one shrinks, the last of those that are to go. Replicas that come are
# rounded down, replicas that stay and traffic that moves are rounded up, so revisions of N replicas never
# have more than N + max(1, N·ratio/100) together.

Stage = tuple[TargetRevision, ...]


@dataclass(frozen=True, slots=True)
class Scales:
    """How many replicas each revision has. ``staged``: those with bounds of a stage; None: not known."""

    replicas: Mapping[str, int]
    staged: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Gauge:
    """So many replicas serve that share of the traffic, and how many all the revisions have."""

    replicas: int
    percent: int
    known: Mapping[str, int]


def next_stage(
    rollout: RolloutOrchestrator, ratio: int, scales: Scales, finish: float = 0.0, *, staged: bool = True
) -> RolloutOrchestrator:
    """The rollout with the goal of the stage that is due; ``finish``: when that stage is overdue.

    Several targets, or a rollout that is not to be ``staged``, are reached in one jump. A stage that is not
    done yet stays as it is.
    """
    if len(rollout.target_revisions) != 1 or not staged:
        return replace(rollout, stage_target_revisions=rollout.target_revisions)
    passed = rollout.stage_ready is True and rollout.last_stage_ready is not True
    if rollout.stage_target_revisions and not passed:
        return rollout
    start = _start(rollout)
    if _plain(rollout.initial_revisions) == _plain(rollout.target_revisions) or not start:
        return replace(rollout, stage_target_revisions=rollout.target_revisions)
    found = gauge(start, scales)
    target = rollout.target_revisions[0]
    stage: Stage = rollout.target_revisions
    if found.replicas > 0:
        stage = _computed(start, target, found, ratio) or rollout.stage_target_revisions
    return replace(rollout, stage_target_revisions=stage, target_finish_time=finish)


def _start(rollout: RolloutOrchestrator) -> Stage:
    """Where the stage begins. What has no share any more is left out."""
    finished = rollout.stage_revision_status if rollout.stage_target_revisions else ()
    return tuple(each for each in finished or rollout.initial_revisions if each.percent)


def _plain(revisions: Sequence[TargetRevision]) -> Stage:
    return tuple(replace(each, url=None, tag="") for each in revisions)


def gauge(start: Sequence[TargetRevision], scales: Scales) -> Gauge:
    """How many replicas serve which share: of the revision with the most replicas for its share.

    A revision without bounds of a stage that rests at its minimum is credited with its share of that.
    """
    standing = [each for each in start if each.percent and each.revision_name in scales.replicas]
    known = {each.revision_name: _credited(each, scales) for each in standing}
    first, *others = [each for each in start if each.direction != "stay" and each.percent]
    best = (known[first.revision_name], first.percent or 0)
    for each in others:
        here = (known[each.revision_name], each.percent or 0)
        denser, sparser = here[0] * best[1] > best[0] * here[1], here[0] * best[1] < best[0] * here[1]
        if scales.staged is not None and (denser if each.revision_name in scales.staged else sparser):
            best = here
    return Gauge(*best, known)


def _credited(revision: TargetRevision, scales: Scales) -> int:
    found, least = scales.replicas[revision.revision_name], revision.min_scale
    adopted = scales.staged is not None and revision.revision_name not in scales.staged
    if adopted and least is not None and found <= least and revision.percent is not None:
        return least * revision.percent // 100
    return found


def delta(replicas: int, percent: int, ratio: int) -> tuple[int, int]:
    """(replicas, percent) that move in one stage; at least one replica does."""
    moved = max(1, replicas * ratio // percent)
    return moved, _up(moved * percent, replicas)


def _up(over: int, under: int) -> int:
    """A quotient, rounded up."""
    return -(-over // under)


def _computed(start: Stage, target: TargetRevision, found: Gauge, ratio: int) -> Stage:
    """The stage after ``start``; empty where no revision is left that could shrink."""
    names = [each.revision_name for each in start]
    moved = delta(found.replicas, found.percent, ratio)
    if target.revision_name not in names:
        return _first(start, target, found, moved)
    at = names.index(target.revision_name)
    going = len(start) - 1 if at < len(start) - 1 else at - 1
    if going < 0:
        return ()
    up, down = _moved(start[at], start[going], found, moved)
    stayed = [replace(each, direction="stay") for each in start]
    stayed[at], stayed[going] = up, down
    return tuple(stayed)


def _first(start: Stage, target: TargetRevision, found: Gauge, moved: tuple[int, int]) -> Stage:
    """The stage in which the target appears. A target that is pinned by name stays pinned."""
    *before, last = start
    new = TargetRevision(
        revision_name=target.revision_name,
        latest_revision=target.latest_revision is not False,
        percent=0,
        min_scale=target.min_scale,
        max_scale=target.max_scale,
    )
    up, down = _moved(new, replace(last, latest_revision=False), found, moved)
    earlier = [
        replace(
            each,
            direction="stay",
            latest_revision=False,
            tag="",
            target_replicas=None
            if (each.target_replicas or 0) < (each.min_scale or 0)
            else each.target_replicas,
        )
        for each in before
    ]
    return (*earlier, down, up)


def _moved(
    up: TargetRevision, down: TargetRevision, found: Gauge, moved: tuple[int, int]
) -> tuple[TargetRevision, TargetRevision]:
    """One revision with a share more, and one with that less; the whole of it where not more is left."""
    replicas, percent = moved
    share, left = up.percent or 0, down.percent or 0
    drained = left <= percent
    share += left if drained else percent
    most = found.replicas * share // found.percent
    if up.revision_name in found.known or not drained:
        most = min(found.known.get(up.revision_name, 0) + replicas, most)
    if share == 100 and drained:
        most = max(most, up.min_scale or 0)
    grown = replace(up, percent=share, target_replicas=most, direction="up")
    if drained:
        return grown, replace(down, percent=None, target_replicas=0, direction="down", tag="")
    left -= percent
    kept = max(found.known.get(down.revision_name, 0) - replicas, _up(found.replicas * left, found.percent))
    return grown, replace(down, percent=left, target_replicas=kept, direction="down", tag="")


def overdue_shift(stage: Stage, ratio: int, scales: Scales) -> Stage:
    """A stage that is overdue with more traffic on the revision that grows: as if replicas had moved.

    Traffic never flows back, however few replicas the revision has that shrinks, and no more flows than it
    has: the shares sum to what they did before.
    """
    found = gauge(stage, scales)
    up, down = retrieve_revs_up_down(stage)
    grows, shrinks = next(iter(up.values())), next(iter(down.values()))
    over = scales.replicas[shrinks.revision_name] - (shrinks.target_replicas or 0)
    shifted = min(ratio, _up(max(0, over) * found.percent, found.replicas), shrinks.percent or 0)
    share, left = (grows.percent or 0) + shifted, (shrinks.percent or 0) - shifted
    moved = {
        grows.revision_name: replace(grows, percent=share),
        shrinks.revision_name: replace(shrinks, percent=left or None),
    }
    return tuple(moved.get(each.revision_name, each) for each in stage)


@lru_cache(maxsize=1024)
def paced(began: int, total: int, ratio: int) -> tuple[int, ...]:
    """How many replicas are new after each stage of ``ratio`` percent, from ``began`` to ``total`` in all.

    Where there are to be more or fewer in the end, each stage has its share of the whole, so that the last
    one makes no jump.
    """
    if not began:
        return (total,)
    old = TargetRevision(revision_name="old", percent=100, min_scale=began, max_scale=began)
    new = TargetRevision(revision_name="new", percent=100, min_scale=began, max_scale=began)
    rollout = RolloutOrchestrator(name="", initial_revisions=(old,), target_revisions=(new,))
    scales, reached = {"old": began}, list[int]()
    while not last_stage_complete(rollout.stage_revision_status, rollout.target_revisions):
        rollout = next_stage(rollout, ratio, Scales(scales, frozenset(scales)))
        stage = rollout.stage_target_revisions
        # A goal may be one beyond the bounds, because of the rounding.
        scales = {each.revision_name: min(began, each.target_replicas or 0) for each in stage}
        rollout = replace(rollout, stage_ready=True, stage_revision_status=remove_non_traffic_rev(stage))
        share = next(each.percent or 0 for each in stage if each.revision_name == "new")
        reached.append(scales["new"] if began == total else max(1, total * share // 100))
    return tuple(reached)
