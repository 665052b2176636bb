"""What a rollout's steps scale: controllers on bare metal, and whatever else has revisions."""

from __future__ import annotations

from typing import Protocol

from farmd.rollout.revisions import StagePodAutoscaler


class ScaleTarget(Protocol):
    """The revisions of one rollout as they stood when they were read, and the changes that a step wants.

    It plans: the worker carries the changes out in a fenced way afterwards, and then everything is read anew.
    """

    def autoscaler(self, revision: str) -> StagePodAutoscaler | None:
        """A revision's bounds and scale, or None if it has none yet. What a change made uncertain is None."""

    def scale(self, wanted: StagePodAutoscaler) -> None:
        """Plan what is missing until a revision has these bounds; nothing where it has them."""
