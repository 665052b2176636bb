"""The reasons against a node, judged on that node alone: all reasons, never only the first.

*Standing* reasons are about the node itself, *room* reasons about the pods and reservations that it
holds. Rules across nodes (spread, anti-affinity) are in ``rules``. ``model.EVICTING`` lists the
reasons that also remove a pod that is on the node already.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from scheduler.constraints import Requirement, selects, tolerates
from scheduler.model import FleetView, NodeView, PlacementRequest, Reason
from store.features import IDENTITY_OF, LIMITS, PROCESS_IO_WEIGHT, lacking
from store.manifests import PORT_RESOURCE, asked
from store.words import amount_text, asked_text

# Amounts are decimal fractions in binary floats: 10 × 0.1 must fit into 1.
TOLERANCE = 1e-9


def standing_reasons(requirement: Requirement, node: NodeView) -> list[Reason]:
    """Selector, constraints, taints, cordon, drain and the agent's absence; empty if there is no reason.

    A fact that only an absent agent could state is no reason against a node (R21): the absence is a reason
    already, and it removes no pod.
    """
    if node.broken:
        return [Reason("record_invalid", "the record of the node does not decode")]
    reasons: list[Reason] = []
    request = requirement.request
    if not selects(requirement, node):
        reasons.extend(
            Reason("selector", f"needs {wanted}, but {_found(node, wanted.key)}")
            for wanted in request.selector.requirements
            if not wanted.matches(node.labels) and not _unknown(node, node.labels, wanted.key)
        )
    if requirement.constraints:
        reasons.extend(
            Reason("constraint", f"needs {rule.text}, but {_found(node, rule.label)}")
            for rule in requirement.constraints
            if not rule.holds(node.labels) and not _unknown(node, node.labels, rule.label)
        )
    if requirement.features and node.facts_known:
        reasons.extend(_lacks(feature) for feature in lacking(requirement.features, node.features))
    if node.taints:
        reasons.extend(
            Reason("taint", f"taint {taint.key}{'=' if taint.value else ''}{taint.value} is not tolerated")
            for taint in node.taints
            if taint.effect == "no-schedule" and not tolerates(request.manifest.placement.tolerations, taint)
        )
    if node.cordoned:
        why = f": {node.cordon_reason}" if node.cordon_reason else ""
        reasons.append(Reason("cordoned", f"closed to new pods{why}"))
    if node.drain:
        if node.drain == "pods" and request.manifest.system:
            reasons.append(Reason("drain_waiting", "drain in progress; system pods leave last"))
        else:
            reasons.append(Reason("draining", f"drain in progress (stage {node.drain})"))
    if node.presence != "present":
        reasons.append(_absence(node))
    return reasons


def _lacks(feature: str) -> Reason:
    """Why a node cannot run a pod: its agent lacks a runtime, does not allow something, or is too old."""
    code, _, name = feature.partition(".")
    words = {
        "runtime": "the node's agent has no runtime",
        "allow": "the node's agent does not allow",
        "registry": "the node's agent knows no registry of artifacts",
    }
    if feature in (LIMITS, PROCESS_IO_WEIGHT):
        what = "limits of processes" if feature == LIMITS else "weights of processes on its disks"
        return Reason("limits", f"the node's agent has no {what}: no control group (version 2) of its own")
    if f"{code}." == IDENTITY_OF:
        group = name.partition("/")[0]
        return Reason("identity", f"the node's agent holds no identity of secret group {group!r}")
    if code not in words:
        return Reason("feature", f"the node's agent does not know {feature!r}")
    return Reason(code, f"{words[code]} {name!r}")


def room_reasons(requirement: Requirement, node: NodeView) -> list[Reason]:
    """Why a node has no room for one more pod: replicas, the instance's name, capacity."""
    reasons: list[Reason] = []
    request = requirement.request
    own = node.owners.get(request.owner, 0)
    if own >= request.replicas_per_node:
        reasons.append(
            Reason("full", f"already has {own} of at most {request.replicas_per_node} of these pods")
        )
    if node.pods and (holder := foreign_holder(requirement, node)) is not None:
        reasons.append(Reason("held", f"instance {requirement.pod_id!r} belongs to another owner, {holder}"))
    if (requirement.amounts or requirement.ports) and node.contended:
        reasons.append(Reason("contended", "another change of the node's reservations is in flight"))
    reasons.extend(_held_ports(requirement, node))
    for resource, amount in requirement.amounts:
        free = _free(requirement, node, resource)
        if amount > free + TOLERANCE and not _unknown(node, node.capacity, resource):
            capacity = node.capacity.get(resource, 0.0)
            left = f"{amount_text(max(free, 0.0))} of {amount_text(capacity)} free"
            offers = left if capacity else "the node has none"
            reasons.append(Reason("capacity", f"asks for {asked_text(resource, amount)}, {offers}"))
    return reasons


def _held_ports(requirement: Requirement, node: NodeView) -> list[Reason]:
    """The fixed ports that other instances have reserved."""
    found = []
    for name in requirement.ports:
        for instance, amounts in sorted(node.reserved.instances.items()):
            if name in amounts and not (requirement.exclusive and instance == requirement.pod_id):
                found.append(Reason("port", f"{port_text(name)} is held by {instance}"))
                break
    return found


def port_text(name: str) -> str:
    """The resource of a fixed port for people: ``port 8080/tcp``."""
    return name.replace("/", " ", 1)


def foreign_holder(requirement: Requirement, node: NodeView) -> str | None:
    """The other owner that has a pod under this instance's name on a node, unless it may be replaced."""
    if not requirement.exclusive:
        return None
    pod = node.pods.get(requirement.pod_id)
    request = requirement.request
    if pod is None or pod.owner == request.owner or pod.owner in request.replaces:
        return None
    return pod.owner


def room(requirement: Requirement, node: NodeView) -> int:
    """How many more of these pods fit on a node that has no room reason."""
    request = requirement.request
    if requirement.exclusive or requirement.ports:
        return 1
    most = request.replicas_per_node - node.owners.get(request.owner, 0)
    for resource, amount in requirement.amounts:
        most = min(most, math.floor((_free(requirement, node, resource) + TOLERANCE) / amount))
    return most


def cramped(
    places: Collection[tuple[str, str]], request: PlacementRequest, view: FleetView
) -> frozenset[tuple[str, str]]:
    """The places (node, instance) where the request does not fit instead of the present reservation.

    Places are judged in order, and each counts the growth of those before it. A request for no more than
    before always fits, also on a node over its capacity. On a node without any record nothing fits,
    because its reservations cannot be changed.
    """
    found = set()
    amounts = asked(request.manifest)
    used = {node: dict(view[node].used) for node, _ in places if node in view}
    for node, instance in sorted(places):
        if node not in view:
            found.add((node, instance))
            continue
        here = view[node].reserved.instances.get(instance, {})
        more = {name: amount - here.get(name, 0.0) for name, amount in amounts.items()}
        if any(
            grown > 0 and used[node].get(name, 0.0) + grown > _capacity(view[node], name) + TOLERANCE
            for name, grown in more.items()
        ):
            found.add((node, instance))
            continue
        for name, grown in more.items():
            used[node][name] = used[node].get(name, 0.0) + grown
    return frozenset(found)


def _capacity(node: NodeView, resource: str) -> float:
    return 1.0 if resource.startswith(PORT_RESOURCE) else node.capacity.get(resource, 0.0)


def load_value(requirement: Requirement, node: NodeView, taken: int) -> float:
    """In [0, 1], higher for emptier nodes; ``taken`` pods of this answer count as placed on the node.

    With resources: the share of the scarcest one that is left after one more pod. Without: 1 / (1 + pods).
    """
    if not requirement.amounts:
        return 1.0 / (1.0 + node.live + taken)
    left = 1.0
    for resource, amount in requirement.amounts:
        capacity = node.capacity.get(resource, 0.0)
        if capacity > 0:
            left = min(left, (_free(requirement, node, resource) - (taken + 1) * amount) / capacity)
    return max(0.0, left)


def _free(requirement: Requirement, node: NodeView, resource: str) -> float:
    free = node.capacity.get(resource, 0.0) - node.used.get(resource, 0.0)
    if requirement.exclusive:  # the new reservation replaces the one under this instance's name
        mine = node.reserved.instances.get(requirement.pod_id)
        if mine is not None:
            free += mine.get(resource, 0.0)
    return free


def _unknown(node: NodeView, known: Mapping[str, object], name: str) -> bool:
    """Whether only the node's agent could state a label or an amount, and its facts are unknown (R21)."""
    return not node.facts_known and name not in known


def _found(node: NodeView, label: str) -> str:
    value = node.labels.get(label)
    return f"there is no label {label!r}" if value is None else f"{label} is {value!r}"


def _absence(node: NodeView) -> Reason:
    if node.presence == "lost":
        return Reason("agent_lost", "the node's agent is lost")
    return Reason("agent_unknown", "the node's agent is absent or unreadable, and not yet given up")
