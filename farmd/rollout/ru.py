"""p2's rolling updates as rollouts: the JSON of ``pkg/roll/fields.Update``, accepted as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from farmd.commands.specs import check_count
from store import codec
from store.errors import InputInvalid
from store.policies import Policy


class Update(msgspec.Struct, rename="pascal", kw_only=True, frozen=True):
    """The fields that p2 writes. ``ID`` and ``RollDelay`` are ignored: a rollout has an id of its own, and
    a stage's rest does what the delay was for.
    """

    id: str = msgspec.field(name="ID", default="")
    old_rc: str = msgspec.field(name="OldRC", default="")
    new_rc: str = msgspec.field(name="NewRC", default="")
    desired_replicas: int = 0
    minimum_replicas: Annotated[int, msgspec.Meta(ge=0)] = 0
    leave_old: bool = False
    roll_delay: int = 0


@dataclass(frozen=True, slots=True)
class Rolling:
    """What such an update asks for."""

    old: str
    new: str
    replicas: int
    policy: Policy


def is_p2(data: Any) -> bool:
    """Whether a document is one of p2's, by the names of its fields."""
    return isinstance(data, dict) and not data.keys().isdisjoint(Update.__struct_encode_fields__)


def from_p2(data: Any, source: str) -> Rolling:
    """The rollout that a p2 update stands for: all at once, within its minimum.

    Raises:
        InputInvalid: not such an update, or a field is missing.
    """
    found = codec.parse_input(Update, data, source)
    for name, value in (("OldRC", found.old_rc), ("NewRC", found.new_rc)):
        if not value:
            raise InputInvalid(f"{source}: {name}: missing, expected a controller's id", field=name)
    check_count(found.desired_replicas, f"{source}: DesiredReplicas", lowest=1)
    if found.minimum_replicas >= found.desired_replicas:
        both = f"{found.minimum_replicas} of {found.desired_replicas}"
        raise InputInvalid(
            f"{source}: MinimumReplicas: found {both}, expected less: nothing could ever leave",
            field="MinimumReplicas",
        )
    policy = Policy(minimum=found.minimum_replicas, stages=["100%"], leave_old=found.leave_old)
    return Rolling(found.old_rc, found.new_rc, found.desired_replicas, policy)
