"""The input and the answers of placement, as plain values.

A ``FleetView`` is the fleet at one moment. Every answer of this package is a function of a request
and a view, so equal input gives equal answers on every farm; an answer must never depend on the
order of a mapping, on a clock or on a random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from store.manifests import Manifest
from store.nodes import Reserved, Taint
from store.selectors import Selector

Presence = Literal["present", "unknown", "lost"]

# Reasons that also remove a pod that is on the node already; the others only keep new pods out.
EVICTING = frozenset({"selector", "constraint", "draining", "agent_lost"})


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod on a node; one that is ``done`` only keeps its name, and has no labels (R29)."""

    owner: str
    labels: Mapping[str, str] = {}
    done: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node, with all facts that placement may use.

    ``labels`` and ``capacity`` are the agent's last known facts, overridden by people's values.
    ``facts_known`` is false if the agent is absent or unreadable and this process knows no facts of it:
    a label or an amount that is missing then is unknown (R21). ``drain`` is the drain's stage, empty
    without one. ``pods`` maps instance to pod, ``owners`` counts the pods of each owner, ``live`` all
    pods, both without those that are done; ``used`` sums ``reserved`` by resource. ``reserved_index`` is
    the ModifyIndex that a reservation is compared with (0: no record yet), and ``reserved_raw`` holds the
    bytes that ``reserved`` was decoded from.
    ``features`` is what the agent says that it can do, such as ``runtime.container``.
    ``contended``: this process has a change of the node's reservations in flight. ``broken``: the node's
    record does not decode, so the node gets no pods and loses none.
    Build it with ``scheduler.fleet.node_view``, which computes the derived fields.
    """

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    cordon_reason: str = ""
    drain: str = ""
    presence: Presence = "present"
    facts_known: bool = True
    features: frozenset[str] = frozenset()
    capacity: Mapping[str, float] = {}
    pods: Mapping[str, PodView] = {}
    owners: Mapping[str, int] = {}
    live: int = 0
    reserved: Reserved = Reserved()
    reserved_index: int = 0
    reserved_raw: bytes = b""
    used: Mapping[str, float] = {}
    contended: bool = False
    broken: bool = False


FleetView = Mapping[str, NodeView]


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The pods to place, and their owner.

    ``labels`` are those of the new pods, for anti-affinity. With ``numbered``, or more than one
    replica a node, instances are named ``<pod>~<n>``, else the instance is the pod id. ``replaces``
    names owners whose instances may be taken over in place (the old version's). Spread and
    anti-affinity regard the pods (node, instance) in ``leaving`` as gone. ``among`` limits the
    question to some nodes. ``features`` are what a node's agent must know besides what the manifest asks for.
    """

    manifest: Manifest
    selector: Selector
    owner: str
    labels: Mapping[str, str] = {}
    replicas_per_node: int = 1
    numbered: bool = False
    replaces: frozenset[str] = frozenset()
    leaving: frozenset[tuple[str, str]] = frozenset()
    among: frozenset[str] | None = None
    features: tuple[str, ...] = ()


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a node is refused: a stable ``code`` and one line for people."""

    code: str
    text: str


class ScorePart(msgspec.Struct, frozen=True, gc=False):
    """One named part of a node's score: ``value`` in [0, 1], times ``weight``."""

    name: str
    value: float
    weight: float

    @property
    def points(self) -> float:
        """The points that the part adds to the score."""
        return self.value * self.weight


class NodeJudgement(msgspec.Struct, frozen=True):
    """One node: every reason against it, or the parts of its score. ``placed`` counts the owner's pods."""

    node: str
    reasons: tuple[Reason, ...] = ()
    parts: tuple[ScorePart, ...] = ()
    placed: int = 0

    @property
    def eligible(self) -> bool:
        """Whether the node may take one more pod."""
        return not self.reasons

    @property
    def retains(self) -> bool:
        """Whether a pod on the node may stay."""
        return not any(reason.code in EVICTING for reason in self.reasons)

    @property
    def score(self) -> float:
        """Sum of the parts; higher is better."""
        return sum(part.points for part in self.parts)


class Explanation(msgspec.Struct, frozen=True):
    """The verdicts on all nodes, by node name; ``ranking`` names the eligible nodes, the best first.

    ``nearest`` is the refused node with the fewest reasons among those without pods of the owner.
    """

    verdicts: tuple[NodeJudgement, ...]
    ranking: tuple[str, ...]
    nearest: NodeJudgement | None


class Assignment(msgspec.Struct, frozen=True, order=True, gc=False):
    """One pod's place. ``replaces`` is the owner whose instance it takes over, usually empty."""

    node: str
    instance: str
    replaces: str = ""
