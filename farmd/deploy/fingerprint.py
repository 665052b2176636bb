"""A plan as one short text, by which a farm knows the plan that a person saw: pure.

Volumes, removals and replacements count with their machines, because they cost data or service. Of pods that
come only the number counts: on a busy fleet the best places change from moment to moment.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from farmd.deploy.operations import (
    RemoveContainerOperation,
    ReplaceContainerOperation,
    RunContainerOperation,
    ServicePlan,
    StopContainerOperation,
)
from farmd.deploy.project import ProjectPlan
from store import codec

Fact = tuple[str | int, ...]


def fingerprint(plan: ProjectPlan) -> str:
    """The fingerprint of a plan; that of an empty one is empty."""
    facts: list[Fact] = [("volume", each.volume.volume_name, each.machine) for each in plan.volumes]
    facts += [fact for service in plan.services for fact in _facts(service)]
    return hashlib.blake2b(codec.encode(sorted(facts)), digest_size=16).hexdigest() if facts else ""


def _facts(plan: ServicePlan) -> list[Fact]:
    name, runs = plan.service_name, Counter[str]()
    found: list[Fact] = []
    for each in plan.operations:
        if isinstance(each, RunContainerOperation):
            runs["run"] += 1
        elif isinstance(each, RemoveContainerOperation | StopContainerOperation):
            verb = "remove" if isinstance(each, RemoveContainerOperation) else "stop"
            found.append((verb, name, *each.place))
        elif isinstance(each, ReplaceContainerOperation):
            found.append((each.order, name, *each.place))
    return [*found, *((verb, name, count) for verb, count in runs.items())]
