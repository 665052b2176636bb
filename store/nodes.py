"""Nodes: what people say of a node, and what its agent says of itself.

``nodes/<node>`` is written by people and by the ``nodes`` kind of work; ``agents/<node>`` is the
agent's session-bound presence: it vanishes with the session, its heartbeat is the renewal.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Effect = Literal["no-schedule", "prefer-no-schedule"]


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keeps pods away that do not tolerate it."""

    key: str
    value: str = ""
    effect: Effect = "no-schedule"


class Drain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A drain in progress: ``stage`` advances pods → system → done; times are seconds since the epoch."""

    stage: Literal["pods", "system", "done"] = "pods"
    since: float = 0.0
    deadline: float = 0.0
    by: str = ""


class Node(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What people say of a node; their labels win over the agent's facts."""

    labels: dict[str, str] = {}
    taints: list[Taint] = []
    cordoned: bool = False
    cordon_reason: str = ""
    drain: Drain | None = None
    capacity: dict[str, float] = {}


class Agent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Presence of a node's agent: its version, facts (labels, capacity) and where its HTTP listens."""

    node: str
    version: str
    features: list[str] = []
    labels: dict[str, str] = {}
    capacity: dict[str, float] = {}
    address: str = ""
    host: str = ""
    boot: str = ""
    pid: int = 0
    since: float = 0.0


class Reserved(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resources reserved on a node: instance → amounts, a map and not a sum (R17).

    ``generation`` counts placements.
    """

    instances: dict[str, dict[str, float]] = {}
    generation: int = 0
