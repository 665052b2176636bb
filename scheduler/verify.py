"""Checks an allocation against the rules that no scheduler may break, one place after the other.

The answers of a remote scheduler are checked with it. It shares the reasons with ``decide`` and no
code with ``rank``, so tests also use it to check the local scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.domains import domain_reasons
from scheduler.feasibility import room_reasons, standing_reasons
from scheduler.fleet import populated, used_amounts
from scheduler.model import Assignment, FleetView, NodeView, PlacementRequest, PodView
from scheduler.requirement import Requirement, compile_request
from scheduler.rules import domain_rules
from store.manifests import asked
from store.words import count_of


def violations(
    request: PlacementRequest, assignments: Sequence[Assignment], count: int, view: FleetView
) -> list[str]:
    """The violations of an allocation, one line each; empty if it may be used.

    Raises:
        PlacementInvalid: the manifest's placement block cannot work.
    """
    requirement = compile_request(request)
    rules = domain_rules(requirement, view, count)
    now: dict[str, NodeView] = dict(view)
    found = []
    if len(assignments) > count:
        found.append(f"{count_of(len(assignments), 'place')} for {count_of(count, 'pod')}")
    for place in assignments:
        node = now.get(place.node)
        if node is None:
            found.append(f"{place.node}: no such node")
            continue
        if request.among is not None and place.node not in request.among:
            found.append(f"{place.node}: not among the request's nodes")
        found += _wrong_instance(requirement, place, node)
        reasons = standing_reasons(requirement, node) + room_reasons(requirement, node)
        reasons += domain_reasons(rules, node)
        found += [f"{place.node}: {reason.text}" for reason in reasons]
        now[place.node] = _after(requirement, place, node)
        for rule in rules:
            rule.add(rule.domain(node))
    return found


def _wrong_instance(requirement: Requirement, place: Assignment, node: NodeView) -> list[str]:
    """Refuse an instance name that is wrong: the key of the intent is what makes an instance unique."""
    pod_id = requirement.pod_id
    if requirement.exclusive:
        if place.instance != pod_id:
            return [f"{place.node}: instance {place.instance!r}, expected {pod_id!r}"]
        holder = node.pods.get(pod_id)
        owner = holder.owner if holder is not None and holder.owner != requirement.request.owner else ""
        if owner in requirement.request.replaces and place.replaces != owner:
            return [f"{place.node}: replaces {place.replaces!r}, expected {owner!r}"]
        return []
    head, _, number = place.instance.rpartition("~")
    if head != pod_id or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
        return [f"{place.node}: instance {place.instance!r}, expected '{pod_id}~<number>'"]
    if place.instance in node.pods:
        return [f"{place.node}: instance {place.instance!r} is taken"]
    return []


def _after(requirement: Requirement, place: Assignment, node: NodeView) -> NodeView:
    """The node with the place taken."""
    request = requirement.request
    pods = {**node.pods, place.instance: PodView(request.owner, request.labels)}
    instances = {**node.reserved.instances, place.instance: asked(request.manifest)}
    reserved = msgspec.structs.replace(node.reserved, instances=instances)
    return msgspec.structs.replace(populated(node, pods), reserved=reserved, used=used_amounts(reserved))
