"""The messages between farmd and a remote scheduler: JSON, version 1.

A question carries only what placement needs: no command or environment of a manifest is sent, and of its
ports only the fixed ones, as resources.
Answers are decoded strictly: an unknown field means that the remote side uses another version of the
format, and a place must never be guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from scheduler.errors import RemoteAnswerInvalid
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest
from store import features
from store.manifests import PORT_RESOURCE, Placement, asked
from store.nodes import Taint

T = TypeVar("T")


class PodQuestion(msgspec.Struct, frozen=True):
    """The pod to place: its manifest's id, labels, resources and placement block.

    ``features`` are those that its node must have.
    """

    id: str
    owner: str
    labels: dict[str, str]
    resources: dict[str, float]
    placement: Placement
    system: bool
    features: list[str]


class WirePod(msgspec.Struct, frozen=True):
    """A pod on a node; one that is ``done`` only keeps its name."""

    owner: str
    labels: dict[str, str]
    done: bool = False


class WireNode(msgspec.Struct, frozen=True):
    """A node; ``used`` sums the reservations."""

    name: str
    labels: dict[str, str]
    taints: list[Taint]
    cordoned: bool
    drain: str
    presence: str
    capacity: dict[str, float]
    used: dict[str, float]
    pods: dict[str, WirePod]
    features: list[str]


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
    nodes: list[WireNode]


class EligibleAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``eligible`` nodes may take a pod, ``retained`` nodes may keep theirs; ``refused``: reasons by node."""

    eligible: list[str]
    retained: list[str]
    refused: dict[str, list[str]] = {}


class AllocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Places in order of preference; ``why`` tells why there are fewer than asked for."""

    assignments: list[Place]
    why: str = ""


class DeallocateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places that were given back, which must be all places of the question."""

    assignments: list[Place]


def question(
    request: PlacementRequest, view: FleetView, *, count: int = 0, assignments: Collection[Assignment] = ()
) -> bytes:
    """Encode a question about the nodes of a view, or those of ``request.among``."""
    manifest = request.manifest
    ports = {name: 1.0 for name in asked(manifest) if name.startswith(PORT_RESOURCE)}
    names = view.keys() if request.among is None else request.among & view.keys()
    body = Question(
        version=1,
        pod=PodQuestion(
            manifest.id,
            request.owner,
            dict(request.labels),
            asked(manifest),
            manifest.placement,
            manifest.system,
            list(features.needed(manifest)),
        ),
        node_selector=str(request.selector),
        replicas_per_node=request.replicas_per_node,
        numbered=request.numbered,
        replaces=sorted(request.replaces),
        leaving=[Place(node, instance) for node, instance in sorted(request.leaving)],
        count=count,
        assignments=[Place(place.node, place.instance) for place in sorted(assignments)],
        nodes=[_node(view[name], ports) for name in sorted(names)],
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


def _node(node: NodeView, ports: Mapping[str, float]) -> WireNode:
    return WireNode(
        name=node.name,
        labels=dict(node.labels),
        taints=list(node.taints),
        cordoned=node.cordoned,
        drain=node.drain,
        presence=node.presence,
        capacity={**ports, **node.capacity},
        used=dict(node.used),
        pods={
            instance: WirePod(pod.owner, dict(pod.labels), pod.done) for instance, pod in node.pods.items()
        },
        features=sorted(node.features),
    )
