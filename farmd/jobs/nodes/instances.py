"""The instances of a job's members, ``<job>-<type>-<index>~<attempt>``, and their environment.

An attempt in the instance's name makes a retry a new intent, a new reality and a log of its own.
"""

from __future__ import annotations

from farmd.jobs.model import Slot
from store.jobs import Job


def instance_of(job: Job, slot: Slot, attempt: int) -> str:
    """The instance of a member."""
    return f"{job.name}-{slot.type}-{slot.index}~{attempt}"


def slot_of(job: Job, instance: str) -> tuple[Slot, int] | None:
    """The slot and the attempt of an instance; None: no member of this job has such a name."""
    base, _, attempt = instance.removeprefix(f"{job.name}-").rpartition("~")
    kind, _, index = base.rpartition("-")
    if not (index.isdecimal() and attempt.isdecimal()):
        return None
    slot = Slot(kind, int(index))
    return (slot, int(attempt)) if instance_of(job, slot, int(attempt)) == instance else None


def rank_of(job: Job, slot: Slot) -> int:
    """The slot's number among all slots of the job, types as declared."""
    before = 0
    for each in job.types:
        if each.name == slot.type:
            break
        before += each.replicas
    return before + slot.index


def variables(job: Job, slot: Slot, attempt: int) -> dict[str, str]:
    """What a member's environment says of its slot."""
    return {
        "FARMD_JOB": job.name,
        "FARMD_TYPE": slot.type,
        "FARMD_INDEX": str(slot.index),
        "FARMD_RANK": str(rank_of(job, slot)),
        "FARMD_WORLD_SIZE": str(job.size),
        "FARMD_ATTEMPT": str(attempt),
    }
