"""A worker's durable state, ``work/<kind>/<id>``: the only worker state that decisions read (R10)."""

from __future__ import annotations

from typing import Literal

import msgspec


class Transfer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pod on its way to another node, make before break: whoever owns its RC goes on from here.

    ``phase`` is ``reserved`` until the new pod stands beside the old one, then ``placed``. ``since`` and
    ``deadline`` are seconds since the epoch; ``cause`` says why the old place is left. Older versions wrote
    ``preempted``, too: such a move is called off where the old node may keep its pod.
    """

    id: str
    old_node: str
    old_instance: str
    new_node: str
    new_instance: str
    cause: Literal["ineligible", "draining", "unhealthy", "preempted"] = "ineligible"
    phase: Literal["reserved", "placed"] = "reserved"
    since: float = 0.0
    deadline: float = 0.0

    @property
    def old(self) -> tuple[str, str]:
        """(node, instance) that is left."""
        return self.old_node, self.old_instance

    @property
    def new(self) -> tuple[str, str]:
        """(node, instance) that takes over."""
        return self.new_node, self.new_instance


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Crashes in a row, the earliest next try (seconds since the epoch), and why it is blocked.

    ``record`` is the ModifyIndex of the record that it was blocked over: another one is a new chance.

    ``transfer_failures`` counts moves that failed in a row, ``transfer_failed`` is the cause of the last of
    them: a drain does not wait for what only an unhealthy pod could not do.

    For a node also the fleet's verdict on it (R21), in seconds since the epoch: ``lost_since`` is when its
    agent was given up (0: it is not), ``absent_since`` when the absence was first seen. The agent lost
    contact before ``absent_since``, so what it stops on its own after ``t`` seconds without contact (R27)
    is being stopped at ``lost_since + t`` by any clock that is wrong by less than the grace period.
    """

    crashes: int = 0
    not_before: float = 0.0
    blocked: str = ""
    transfer: Transfer | None = None
    transfer_failures: int = 0
    transfer_not_before: float = 0.0
    transfer_failed: str = ""
    record: int = 0
    absent_since: float = 0.0
    lost_since: float = 0.0
