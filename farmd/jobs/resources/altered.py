"""Finds types whose template was changed while members of it run.

The API server cannot refuse such a change, because templates keep every field. What must never break: members
that run together are of one template, so none is created until the change is taken back, or the job was
stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from farmd.jobs.controller import JobController
from farmd.jobs.names import TEMPLATE_ANNOTATION
from farmd.jobs.objects import KubePod
from farmd.jobs.resources.resource import Resource

_OVER = ("Succeeded", "Failed")


def digest(of: Resource, name: str) -> str:
    """What the members of a type bear of their template: 16 hex digits of its content, in any order."""
    return hashlib.sha256(msgspec.json.encode(of.templates[name], order="sorted")).hexdigest()[:16]


def altered(engine: JobController, of: Resource, pods: Sequence[KubePod]) -> tuple[str, ...]:
    """The types with members that run and were made of another template; members of earlier versions of
    farmd do not say of which.
    """
    return tuple(
        kind.name
        for kind in of.job.types
        if _bear(engine.filter_pods_for_replica_type(pods, kind.name)) - {digest(of, kind.name)}
    )


def _bear(pods: Iterable[KubePod]) -> set[str]:
    live = (each for each in pods if not each.metadata.terminating and each.status.phase not in _OVER)
    return {each.metadata.annotations.get(TEMPLATE_ANNOTATION, "") for each in live} - {""}
