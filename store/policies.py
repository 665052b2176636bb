"""How a new version comes to the pods of a controller: a rollout's policy, which an RC may bear too.

Every field has its default, so one field alone is a whole policy.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from store import gates
from store.gates import Gate
from store.quantities import Seconds, Share

Part = Annotated[int, msgspec.Meta(ge=0)] | Share
"""A number of replicas, or a share of all: ``3`` or ``10%``."""

Strategy = Literal["rolling", "availability", "resourceutil", "blue-green"]

NotNegative = Annotated[Seconds, msgspec.Meta(ge=0)]


class Stage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of the way: until ``to`` replicas are new, then a rest of ``bake`` seconds.

    ``approve``: it does not begin before a person says so. ``gates`` are the names of those that hold for it.
    """

    to: Part
    bake: NotNegative = 0.0
    approve: bool = False
    gates: list[str] = []


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a rollout goes (p2 ``roll/fields.Update``, Knative's rollout strategies).

    ``strategy``: new pods take the places of old ones (``rolling``); in each stage new pods come first, then
    as many old ones go (``availability``), or the other way round (``resourceutil``); all new pods come, a
    service switches to them, and ``keep_old`` seconds later the old ones go (``blue-green``).
    ``minimum``: pods of both versions that stay available; None: what the strategy permits, and in a
    ``rolling`` one all but the controller's ``max_unavailable``. ``stages`` end at the whole; empty: one pod
    first, then all. ``ratio``: percent of the pods in each stage, in place of ``stages``.
    ``min_healthy_time``: seconds until a healthy pod counts; None: the controller's own.
    ``progress_deadline``: seconds without progress until the rollout fails, ``deadline``: seconds for it all
    (0: none). ``health_deadline``: seconds for which a new pod may be unhealthy until the version fails;
    0, or None in a rollout of an earlier version: ``progress_deadline`` alone counts. ``tolerate``: new pods
    that need not be available at the end of a stage.
    ``require_healthy_end`` False: in the end none of the last pods that come need be. ``on_failure``: what
    happens to a version that fails. ``leave_old`` keeps the old controller, and the pods that the new one did
    not take over. ``gates`` are asked while a stage that names them lasts, and those that no stage names in
    all stages.
    """

    strategy: Strategy = "rolling"
    minimum: Part | None = None
    stages: list[Stage | Part] = []
    ratio: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    min_healthy_time: NotNegative | None = None
    progress_deadline: Annotated[Seconds, msgspec.Meta(gt=0)] = 600.0
    health_deadline: NotNegative | None = None
    deadline: NotNegative = 0.0
    tolerate: Part = 0
    require_healthy_end: bool = True
    on_failure: Literal["revert", "pause"] = "revert"
    leave_old: bool = False
    keep_old: NotNegative = 600.0
    gates: list[Gate] = []

    @property
    def beside(self) -> bool:
        """Whether pods of both versions stand beside one another, as new ones come before old ones go."""
        return self.strategy in ("availability", "blue-green")


def staged(stage: Stage | int | str) -> Stage:
    """A stage, however short people wrote it."""
    return stage if isinstance(stage, Stage) else Stage(to=stage)


def check_gates(policy: Policy, path: str) -> None:
    """Refuse gates that could never be asked, or never pass; ``path`` is the field of the policy.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    stages = map(staged, policy.stages)
    gates.check(policy.gates, [stage.gates for stage in stages], policy.progress_deadline, path)


def at_least(part: int | str, whole: int) -> int:
    """A part of a whole, rounded up."""
    return part if isinstance(part, int) else math.ceil(int(part[:-1]) * whole / 100)


def at_most(part: int | str, whole: int) -> int:
    """A part of a whole, rounded down."""
    return part if isinstance(part, int) else int(part[:-1]) * whole // 100
