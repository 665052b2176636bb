"""A worker's durable state, ``work/<kind>/<id>``: the only worker state that decisions read (R10)."""

from __future__ import annotations

from typing import Literal

import msgspec

from store.apps import DispatchState
from store.deployments import DeploymentState
from store.rollouts import RolloutState
from store.times import Time


class Transfer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The move of a pod to another node, make before break; the present owner of the RC continues it.

    ``phase`` is ``reserved`` until the new pod exists beside the old one, then ``placed``. ``since`` and
    ``deadline`` are seconds since the epoch; ``cause`` says why the pod leaves its node. Older versions also
    wrote ``preempted``: such a move is cancelled if the old node may keep its pod.
    """

    id: str
    old_node: str
    old_instance: str
    new_node: str
    new_instance: str
    cause: Literal["ineligible", "draining", "unhealthy", "preempted"] = "ineligible"
    phase: Literal["reserved", "placed"] = "reserved"
    since: Time = 0.0
    deadline: Time = 0.0

    @property
    def old(self) -> tuple[str, str]:
        """(node, instance) that the pod leaves."""
        return self.old_node, self.old_instance

    @property
    def new(self) -> tuple[str, str]:
        """(node, instance) that the pod moves to."""
        return self.new_node, self.new_instance


STATES = {"rollouts": "rollout", "deployments": "deployment", "apps": "dispatch"}


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Crashes in a row, the earliest next try (seconds since the epoch), and why the worker is blocked.

    ``record`` is the ModifyIndex of the record that the worker was blocked with; it retries with another one.

    ``transfer_failures`` counts failed moves in a row, ``transfer_failed`` is the cause of the last one: a
    drain does not wait because the move of an unhealthy pod failed.

    ``rollout`` is how far a rollout is, ``deployment`` how far a deployment is, ``dispatch`` an app.

    For a node it also holds when its agent was found missing (R21), in seconds since the epoch:
    ``absent_since`` is when the absence was first seen, ``lost_since`` when the node became lost (0: it is
    not). The agent lost contact before ``absent_since``. So at ``lost_since + t`` it has begun to stop a pod
    whose ``stop_after`` is ``t`` (R27), if its clock is wrong by less than the grace period.
    """

    crashes: int = 0
    not_before: Time = 0.0
    blocked: str = ""
    transfer: Transfer | None = None
    transfer_failures: int = 0
    transfer_not_before: Time = 0.0
    transfer_failed: str = ""
    record: int = 0
    absent_since: Time = 0.0
    lost_since: Time = 0.0
    rollout: RolloutState | None = None
    deployment: DeploymentState | None = None
    dispatch: DispatchState | None = None

    def keeps(self, kind: str) -> bool:
        """Whether the record holds the progress of an item that would begin again without it."""
        return kind not in STATES or getattr(self, STATES[kind]) is not None
