"""p2's rolling updates as rollouts: the JSON of ``pkg/roll/fields.Update``, accepted as it is."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

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
    minimum_replicas: int = 0
    leave_old: bool = False
    roll_delay: int = 0


@dataclass(frozen=True, slots=True)
class Rolling:
    """What such an update asks for."""

    old: str
    new: str
    replicas: int
    policy: Policy


def from_p2(text: str | bytes, source: str) -> Rolling:
    """The rollout that a p2 update stands for: all at once, within its minimum.

    Raises:
        InputInvalid: not such JSON, or a field is missing.
    """
    try:
        found = codec.parse_input(Update, msgspec.json.decode(text), source)
    except msgspec.DecodeError as error:
        raise InputInvalid(f"{source}: not JSON: {error}", source=source) from error
    for name, value in (("OldRC", found.old_rc), ("NewRC", found.new_rc)):
        if not value:
            raise InputInvalid(f"{source}: {name}: missing, expected a controller's id", field=name)
    if found.desired_replicas < 1:
        raise InputInvalid(
            f"{source}: DesiredReplicas: found {found.desired_replicas}, expected 1 or more",
            field="DesiredReplicas",
        )
    policy = Policy(minimum=found.minimum_replicas, stages=["100%"], leave_old=found.leave_old)
    return Rolling(found.old_rc, found.new_rc, found.desired_replicas, policy)
