"""What events of a job's pods and services lead to: expectations are met, and the job is queued.

Pods and services are handled alike. What must never break: only an event that was expected lowers an
expectation, once; an object of another kind wakes nobody, and one of a job that was deleted and made anew
wakes the new job only by its end, which frees a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from farmd.jobs.expectations import ControllerExpectations
from farmd.jobs.names import job_key
from farmd.jobs.objects import Owned, OwnerReference, Tombstone
from farmd.jobs.ports import ControllerInterface
from farmd.workqueue import WorkQueue

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of one resource; ``expectation`` makes the key of a job's type. ``shared``: the type of an
    object without the label of one; None: such an object is no member.
    """

    controller: ControllerInterface
    expectations: ControllerExpectations
    queue: WorkQueue[str]
    expectation: Callable[[str, str], str]
    shared: str | None = None

    def add(self, each: Owned) -> None:
        """An object appeared. One that leaves already, as after a restart of ours, is no creation."""
        if each.metadata.terminating:
            return
        if (found := self._member(each)) is not None:
            key, kind = found
            self.expectations.creation_observed(self.expectation(key, kind))
            self.queue.add(key)

    def update(self, old: Owned, new: Owned) -> None:
        """An object changed; if its owner did, both jobs are queued."""
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        before, now = old.metadata.controller, new.metadata.controller
        jobs = {self._resolve(old, before) if before != now else None, self._resolve(new, now)}
        for key in sorted(key for key in jobs if key is not None):
            self.queue.add(key)

    def delete(self, each: object) -> None:
        """An object vanished: itself, or a tombstone with its last known state."""
        last = each.object if isinstance(each, Tombstone) else each
        if not hasattr(last, "metadata"):
            log.error("jobs.unknown_deletion", found=type(last).__name__)
            return
        if (found := self._member(last)) is not None:
            key, kind = found
            self.expectations.deletion_observed(self.expectation(key, kind))
            self.queue.add(key)
        elif (namesake := self._namesake(last.metadata.namespace, last.metadata.controller)) is not None:
            self.queue.add(job_key(namesake))

    def _member(self, each: Owned) -> tuple[str, str] | None:
        """The key of its job and its type; None: it is no member of a job of this kind."""
        key = self._resolve(each, each.metadata.controller)
        kind = each.metadata.labels.get(self.controller.get_replica_type_label_key(), self.shared)
        return None if key is None or kind is None else (key, kind)

    def _resolve(self, each: Owned, owner: OwnerReference | None) -> str | None:
        """The key of the job that controls an object; None: none of this kind does."""
        job = self._namesake(each.metadata.namespace, owner)
        return None if job is None or owner is None or job.metadata.uid != owner.uid else job_key(job)

    def _namesake(self, namespace: str, owner: OwnerReference | None) -> Owned | None:
        """The job that has the name of an owner now; None: there is none, or the owner is of another kind."""
        ours = self.controller.get_api_group_version_kind()
        if owner is None or owner.kind != ours.kind or owner.api_version.rpartition("/")[0] != ours.group:
            return None
        return self.controller.get_job_from_informer_cache(namespace, owner.name)
