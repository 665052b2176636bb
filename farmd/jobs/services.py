"""The services of a job: one that all members share, or one for each slot, whose name is its member's."""

from __future__ import annotations

from collections.abc import Iterable

from farmd.jobs.members import exists
from farmd.jobs.model import JobSpec, ServiceKey, Slot


def wanted(job: JobSpec) -> list[ServiceKey]:
    """The services that a job should have, in the order of creation."""
    if job.services == "each":
        return [Slot(kind.name, index) for kind in job.types for index in range(kind.replicas)]
    return [None] if job.services == "shared" else []


def serves(job: JobSpec, key: ServiceKey) -> bool:
    """Whether a job should have this service."""
    if key is None:
        return job.services == "shared"
    return job.services == "each" and exists(job, key)


def ordered(services: Iterable[ServiceKey]) -> list[ServiceKey]:
    """Services in an order that is always the same."""
    return sorted(services, key=lambda key: (key is not None, key or Slot("", 0)))
