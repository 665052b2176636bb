"""What placement is decided from, and what it answers: plain values, no behaviour beyond naming.

A ``FleetView`` is one moment of the fleet. Everything in this package is a function of a request
and a view, so equal input gives equal answers on every farm; nothing here may ever depend on the
order of a mapping, a clock or a random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from store.manifests import Manifest
from store.nodes import Reserved, Taint
from store.selectors import Selector

Presence = Literal["present", "unknown", "lost"]

# Reasons that send away even a pod that already stands on the node; the others keep new ones out.
EVICTING = frozenset({"selector", "constraint", "draining", "agent_lost"})


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod that stands on a node."""

    owner: str
    labels: Mapping[str, str] = {}


class NodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node, with everything that placement may look at.

    ``labels`` and ``capacity`` are the agent's facts, or those that it stated last, overlaid by what
    people say. ``facts_known`` is false where the agent is absent or unreadable and this process knows of
    no facts that it stated: a label or an amount that is missing then is unknown (R21). ``drain`` is the
    drain's stage, empty without one. ``pods`` maps instance to pod, ``owners`` counts them by owner;
    ``used`` sums ``reserved`` by resource. ``reserved_index`` is the ModifyIndex that a reservation
    is compared with (0: no record yet) and ``reserved_raw`` the bytes it was decoded from.
    ``contended`` says that this process has a change of the node's reservations in flight, ``broken``
    that the record of what people say does not decode: then nothing comes, and nothing is sent away.
    Build it with ``scheduler.fleet.node_view``, which keeps the derived fields true.
    """

    name: str
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    cordon_reason: str = ""
    drain: str = ""
    presence: Presence = "present"
    facts_known: bool = True
    capacity: Mapping[str, float] = {}
    pods: Mapping[str, PodView] = {}
    owners: Mapping[str, int] = {}
    reserved: Reserved = Reserved()
    reserved_index: int = 0
    reserved_raw: bytes = b""
    used: Mapping[str, float] = {}
    contended: bool = False
    broken: bool = False


FleetView = Mapping[str, NodeView]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed, and for whom.

    ``labels`` are those that the new pods will bear (anti-affinity sees them). With ``numbered``, or
    more than one replica a node, instances are named ``<pod>~<n>``, else they are the pod id itself.
    ``replaces`` names owners whose instance may be taken over in place (a rollout's old side);
    ``leaving`` are pods, as (node, instance), that spread and anti-affinity regard as gone, and
    ``among`` limits the question to some nodes.
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


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a node does not do: a stable ``code`` and one line for people."""

    code: str
    text: str


class ScorePart(msgspec.Struct, frozen=True, gc=False):
    """One named part of a node's score: ``value`` in [0, 1], times ``weight``."""

    name: str
    value: float
    weight: float

    @property
    def points(self) -> float:
        """What the part adds to the score."""
        return self.value * self.weight


class Verdict(msgspec.Struct, frozen=True):
    """One node: every reason against it, or the parts of its score. ``placed`` counts the owner's pods."""

    node: str
    reasons: tuple[Reason, ...] = ()
    parts: tuple[ScorePart, ...] = ()
    placed: int = 0

    @property
    def eligible(self) -> bool:
        """Whether one more pod may go there."""
        return not self.reasons

    @property
    def retains(self) -> bool:
        """Whether a pod that stands there may stay."""
        return not any(reason.code in EVICTING for reason in self.reasons)

    @property
    def score(self) -> float:
        """Sum of the parts; higher is better."""
        return sum(part.points for part in self.parts)


class Explanation(msgspec.Struct, frozen=True):
    """The verdict on every node by name, the best nodes first in ``ranking``.

    ``nearest`` is the refused node with the fewest reasons that has none of the owner's pods yet.
    """

    verdicts: tuple[Verdict, ...]
    ranking: tuple[str, ...]
    nearest: Verdict | None


class Assignment(msgspec.Struct, frozen=True, order=True, gc=False):
    """One pod's place. ``replaces`` is the owner whose instance it takes over, usually empty."""

    node: str
    instance: str
    replaces: str = ""
