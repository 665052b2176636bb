"""Which objects are a job's own: it adopts orphans that its selector matches, and releases what it does not
match.

What must never break: an object of another controller is left alone; a job that is being deleted adopts
nothing, by a fresh read, because a watch may not know of the deletion yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from farmd.kubernetes.jobs.protocols import ApiFailed
from farmd.kubernetes.objects import Owned, OwnerReference

O = TypeVar("O", bound=Owned)  # noqa: E741
Outcome = Literal["ours", "adopt", "release", "ignore"]
_GONE = frozenset({404, 422})


class CannotAdopt(Exception):
    """The job may not adopt: it is gone, being deleted, or cannot be read."""


class ClaimFailed(Exception):
    """Some objects could be neither adopted nor released; all others were looked at."""

    def __init__(self, noun: str, failures: list[Exception]) -> None:
        super().__init__("; ".join(str(each) for each in failures))
        self.noun = noun
        self.failures = failures


CanAdopt = Callable[[], Awaitable[None]]
Patch = Callable[[O, Mapping[str, Any]], Awaitable[None]]


def recheck_deletion_timestamp(get_object: Callable[[], Awaitable[Owned | None]], uid: str) -> CanAdopt:
    """A function that refuses adoption (``CannotAdopt``) by a job that is deleted, or is another by now.

    ``get_object`` reads the job afresh; it is called at the first use alone, and its verdict holds for all.
    """
    verdict: list[str] = []

    async def can_adopt() -> None:
        if not verdict:
            verdict.append(await _objection(get_object, uid))
        if verdict[0]:
            raise CannotAdopt(verdict[0])

    return can_adopt


async def _objection(get_object: Callable[[], Awaitable[Owned | None]], uid: str) -> str:
    try:
        fresh = await get_object()
    except ApiFailed as error:
        return f"cannot read the job again: {error}"
    if fresh is None or fresh.metadata.uid != uid:
        return "the job is gone, or another one has its name"
    return "the job is being deleted" if fresh.metadata.terminating else ""


def outcome(job: Owned, each: Owned, labels: Mapping[str, str]) -> Outcome:
    """What a job does about one object; ``labels`` are its selector."""
    owner = each.metadata.controller
    matches = labels.items() <= each.metadata.labels.items()
    if owner is not None:
        if owner.uid != job.metadata.uid:
            return "ignore"
        return "ours" if matches else ("ignore" if job.metadata.terminating else "release")
    return "adopt" if matches and not (job.metadata.terminating or each.metadata.terminating) else "ignore"


@dataclass(frozen=True, slots=True)
class Adoption(Generic[O]):
    """Claims objects of one resource for a job. ``patch`` writes a strategic merge patch to an object."""

    job: Owned
    owner: OwnerReference
    labels: Mapping[str, str]
    noun: str
    can_adopt: CanAdopt
    patch: Patch[O]

    async def all(self, found: Iterable[O]) -> list[O]:
        """The objects that are the job's, of those that were found.

        Raises:
            ClaimFailed: some could be neither adopted nor released.
        """
        claimed: list[O] = []
        failures: list[Exception] = []
        for each in found:
            try:
                if await self._one(each):
                    claimed.append(each)
            except (ApiFailed, CannotAdopt) as error:
                named = f"{each.metadata.namespace}/{each.metadata.name} ({each.metadata.uid})"
                failures.append(type(error)(f"cannot claim {self.noun} {named}: {error}"))
        if failures:
            raise ClaimFailed(self.noun, failures)
        return claimed

    async def _one(self, each: O) -> bool:
        what = outcome(self.job, each, self.labels)
        if what == "release":
            await self._gone_is_fine(each, released(each, self.job.metadata.uid), _GONE)
        if what != "adopt":
            return what == "ours"
        await self.can_adopt()
        return await self._gone_is_fine(each, adopted(each, self.owner), frozenset({404}))

    async def _gone_is_fine(self, each: O, patch: Mapping[str, Any], gone: frozenset[int]) -> bool:
        """Whether the patch was written; an object that is gone, or another by now, needs none."""
        try:
            await self.patch(each, patch)
        except ApiFailed as error:
            if error.status in gone and error.reason != "Denied":
                return False
            raise
        return True


def adopted(each: Owned, owner: OwnerReference) -> dict[str, Any]:
    """The patch that adds an owner; the object's own uid in it refuses another object of the same name."""
    return {"metadata": {"uid": each.metadata.uid, "ownerReferences": [msgspec.to_builtins(owner)]}}


def released(each: Owned, owner_uid: str) -> dict[str, Any]:
    """The patch that takes an owner away."""
    gone = {"$patch": "delete", "uid": owner_uid}
    return {"metadata": {"uid": each.metadata.uid, "ownerReferences": [gone]}}
