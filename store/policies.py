"""How a new version comes to the pods of a controller: a rollout's policy, with its gates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from store.credentials import refusal
from store.errors import InputInvalid, refuse
from store.mistakes import nearest, shown
from store.quantities import Seconds, Share

# Gates of a rollout's policy: what must answer well for the new version to go on, and what people may
# write.
#
# A gate is an address that answers with a status, or a query whose number stays within limits.

MOST_GATES = 10
LONGEST = 2000
_NAME = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

GateType = Literal["http", "prometheus"]
Answers = Annotated[int, msgspec.Meta(ge=1, le=100)]


class Gate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Asked ``every`` so many seconds, for ``timeout`` seconds at most.

    ``http`` is the address of one that passes where it answers with the status ``expect``, None being 200.
    ``prometheus`` is the query of one that passes where the one number that it yields is at most ``max`` and
    at least ``min``. So many answers in a row are a verdict: ``passes``, ``failures``.
    """

    name: str
    http: str = ""
    expect: Annotated[int, msgspec.Meta(ge=100, le=599)] | None = None
    prometheus: str = ""
    max: float | None = None
    min: float | None = None
    every: Annotated[Seconds, msgspec.Meta(ge=1, le=3600)] = 10.0
    timeout: Annotated[Seconds, msgspec.Meta(gt=0, le=60)] = 5.0
    passes: Answers = 3
    failures: Answers = 3

    @property
    def type(self) -> GateType:
        """What it asks."""
        return "http" if self.http else "prometheus"


def check(gates: Sequence[Gate], stages: Iterable[Sequence[str]], deadline: float, path: str) -> None:
    """Refuse gates that could never be asked, or never pass.

    ``stages`` are the gates that each stage names, ``deadline`` is the time without progress, ``path`` the
    field of the policy.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    names = [gate.name for gate in gates]
    if len(gates) > MOST_GATES:
        refuse(f"{path}.gates", f"{len(gates)}", f"at most {MOST_GATES}")
    for number, gate in enumerate(gates):
        _check(gate, f"{path}.gates[{number}]", deadline)
        if gate.name in names[:number]:
            refuse(f"{path}.gates[{number}].name", f"{gate.name!r} again", "a name for each gate")
    for number, named in enumerate(stages):
        for name in named:
            if name not in names:
                known = nearest(name, names) if names else ", expected none: the policy has no gates"
                field = f"{path}.stages[{number}].gates"
                raise InputInvalid(f"{field}: found {name!r}{known}", field=field)


def _check(gate: Gate, path: str, deadline: float) -> None:
    if not _NAME.fullmatch(gate.name):
        refuse(f"{path}.name", shown(gate.name), "up to 63 lower-case letters, digits and '-'")
    if bool(gate.http) == bool(gate.prometheus):
        refuse(
            path, "both http and prometheus" if gate.http else "neither http nor prometheus", "one of them"
        )
    strange = ("max", "min") if gate.http else ("expect",)
    for field in strange:
        if getattr(gate, field) is not None:
            refuse(f"{path}.{field}", f"{field} beside {gate.type}", f"no {field}")
    if gate.http:
        _check_url(gate.http, f"{path}.http")
    else:
        _check_query(gate, path)
    if gate.timeout > gate.every:
        refuse(f"{path}.timeout", f"{gate.timeout:g} s", f"at most every, which is {gate.every:g} s")
    if (least := (gate.passes - 1) * gate.every) >= deadline:
        found = f"{gate.passes}, one every {gate.every:g} s, which take {least:g} s"
        refuse(f"{path}.passes", found, f"less than progress_deadline, which is {deadline:g} s")


def _check_url(url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        parts, good = None, None
    if (
        parts is None
        or not good
        or len(url) > LONGEST
        or any(c.isspace() or not c.isprintable() for c in url)
    ):
        refuse(path, shown(url), f"http:// or https:// and a host, {LONGEST} characters at most")
        return
    if parts.username is not None or parts.password is not None:
        refuse(path, "an address with a user or password", "none, because records are readable to everybody")
    if why := refusal(parts.hostname or ""):
        refuse(path, shown(url), f"another address: {why}")


def _check_query(gate: Gate, path: str) -> None:
    if not gate.prometheus.strip() or len(gate.prometheus) > LONGEST:
        refuse(f"{path}.prometheus", f"{len(gate.prometheus)} characters", f"a query of 1 to {LONGEST}")
    for field, limit in (("max", gate.max), ("min", gate.min)):
        if limit is not None and not math.isfinite(limit):
            refuse(f"{path}.{field}", shown(limit), "a finite number")
    if gate.max is None and gate.min is None:
        refuse(path, "neither max nor min", "one of them, or both")
    if gate.max is not None and gate.min is not None and gate.max < gate.min:
        refuse(f"{path}.max", f"{gate.max:g}", f"at least min, which is {gate.min:g}")


# How a new version comes to the pods of a controller: a rollout's policy, which an RC may bear too.
#
# Every field has its default, so one field alone is a whole policy.

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
        """Whether pods of both versions run side by side, because new ones come before old ones go."""
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
    check(policy.gates, [stage.gates for stage in stages], policy.progress_deadline, path)


OVER_NODES = ("rolling", "availability")


def check_over_nodes(policy: Policy, path: str) -> None:
    """Refuse what a rollout over nodes does not know: the floor and the pace are those of the owner's record.

    Raises:
        InputInvalid: naming the field.
    """
    if policy.strategy not in OVER_NODES:
        refuse(f"{path}.strategy", policy.strategy, "rolling (in place) or availability (beside)")
    if policy.minimum is not None:
        refuse(f"{path}.minimum", str(policy.minimum), "none, because min_health is the floor")
    if policy.leave_old:
        refuse(f"{path}.leave_old", "true", "false, because one version stays in the end")


def at_least(part: int | str, whole: int) -> int:
    """A part of a whole, rounded up."""
    return part if isinstance(part, int) else math.ceil(int(part[:-1]) * whole / 100)


def at_most(part: int | str, whole: int) -> int:
    """A part of a whole, rounded down."""
    return part if isinstance(part, int) else int(part[:-1]) * whole // 100
