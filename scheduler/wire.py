"""What travels between farmd and a remote scheduler: JSON, version 1.

Questions carry what placement needs and nothing else: no command, environment or port of a manifest
leaves the house. Answers are decoded strictly: an unknown field means that the other side speaks
another language, and guessing where pods go is no option.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from scheduler.errors import RemoteAnswerInvalid
from scheduler.model import Assignment, FleetView, NodeView, Request
from store.manifests import Placement
from store.nodes import Taint

T = TypeVar("T")


class PodQuestion(msgspec.Struct, frozen=True):
    """The pod: its application's id, labels, amounts, placement block."""

    id: str
    owner: str
    labels: dict[str, str]
    resources: dict[str, float]
    placement: Placement
    system: bool


class PodState(msgspec.Struct, frozen=True):
    """A pod on a node."""

    owner: str
    labels: dict[str, str]


class NodeState(msgspec.Struct, frozen=True):
    """A node; ``used`` sums the reservations."""

    name: str
    labels: dict[str, str]
    taints: list[Taint]
    cordoned: bool
    drain: str
    presence: str
    capacity: dict[str, float]
    used: dict[str, float]
    pods: dict[str, PodState]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node and the instance on it."""

    node: str
    instance: str


class Question(msgspec.Struct, frozen=True):
    """Body of every request. ``count`` is used by allocate, ``assignments`` by deallocate."""

    version: int
    pod: PodQuestion
    node_selector: str
    replicas_per_node: int
    numbered: bool
    replaces: list[str]
    leaving: list[Place]
    count: int
    assignments: list[Place]
    nodes: list[NodeState]


class EligibleAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``eligible`` may take a pod, ``retained`` may keep theirs; ``refused`` says why, by node."""

    eligible: list[str]
    retained: list[str]
    refused: dict[str, list[str]] = {}


class AllocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Places in order of preference; ``why`` when they are fewer than asked for."""

    assignments: list[Place]
    why: str = ""


class DeallocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places that were given back: all that were asked for."""

    assignments: list[Place]


def question(
    request: Request, view: FleetView, *, count: int = 0, assignments: Collection[Assignment] = ()
) -> bytes:
    """Encode a question about the nodes of a view, or those of ``request.among``."""
    manifest = request.manifest
    names = view.keys() if request.among is None else request.among & view.keys()
    body = Question(
        version=1,
        pod=PodQuestion(
            manifest.id,
            request.owner,
            dict(request.labels),
            manifest.resources,
            manifest.placement,
            manifest.system,
        ),
        node_selector=str(request.selector),
        replicas_per_node=request.replicas_per_node,
        numbered=request.numbered,
        replaces=sorted(request.replaces),
        leaving=[Place(node, instance) for node, instance in sorted(request.leaving)],
        count=count,
        assignments=[Place(place.node, place.instance) for place in sorted(assignments)],
        nodes=[_node(view[name]) for name in sorted(names)],
    )
    return msgspec.json.encode(body)


def answer(kind: type[T], body: bytes) -> T:
    """Decode an answer strictly.

    Raises:
        RemoteAnswerInvalid: wrong shape; names the field, what was found and what was expected.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteAnswerInvalid(f"remote scheduler's answer: {error}") from error


def _node(node: NodeView) -> NodeState:
    return NodeState(
        name=node.name,
        labels=dict(node.labels),
        taints=list(node.taints),
        cordoned=node.cordoned,
        drain=node.drain,
        presence=node.presence,
        capacity=dict(node.capacity),
        used=dict(node.used),
        pods={instance: PodState(pod.owner, dict(pod.labels)) for instance, pod in node.pods.items()},
    )
