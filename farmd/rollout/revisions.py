"""What a staged rollout says of revisions: where it began, where it ends, and the goal of its stage.

A revision is one version of what runs: a controller here, a revision of a Knative service there. These
records are those of Knative's progressive rollout (``pkg/apis/serving/v1``). None, 0 and a missing entry are
three different things: a percent of None is drained, a percent of 0 is kept ready without traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from farmd.runtime.errors import FarmdError

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
