"""The jobs of a cluster as items of work, and what all their workers share.

A job that was deleted and made anew under its name is another item. A job that is over and that nobody has
to clean or delete any more is none: it costs no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from farmd.farm.model import Item
from farmd.jobs.objects import Owned
from farmd.kubernetes.transport import KubernetesTransport
from farmd.kubernetes.unit import JobObject, Unit
from farmd.runtime.wake import Wake
from store.errors import InputInvalid

MANAGERS = frozenset({"", "farmd.io/farmd"})


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    managed_by: str = ""
    ttl_seconds_after_finished: float | None = None
    clean_pod_policy: str | None = None


class _Brief(msgspec.Struct, frozen=True, rename="camel"):
    run_policy: _Policy | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A job and where it is watched."""

    unit: Unit
    namespace: str
    name: str


class JobItems:
    """The items of all units (``farmd.farm.items.Items``)."""

    def __init__(self, units: Sequence[Unit], needs: tuple[str, ...]) -> None:
        self.known: dict[str, Known] = {}
        self._units, self._needs = units, needs
        self._items: dict[str, Item] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []
        for unit in units:
            unit.jobs.listen(_Jobs(unit, self._seen, self._gone))
            if unit.groups is not None:
                unit.groups.store.listen(_Groups(unit, self._seen))

    def items(self) -> Mapping[str, Item]:
        """All jobs that are work."""
        return self._items

    def trusted(self) -> bool:
        """Whether every job is known: a list that failed proves nothing."""
        return all(unit.synced and not unit.doubt for unit in self._units)

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the changed items, and with whether the change can affect claiming."""
        self._subscribers.append(changed)

    def subscribe_gone(self, gone: Callable[[set[str]], None]) -> None:
        """Call back with the items that are gone."""
        self.subscribe(lambda changed, _: gone(changed - self._items.keys()))

    def _seen(self, unit: Unit, job: JobObject) -> None:
        meta = job.metadata
        self.known[meta.uid] = Known(unit, meta.namespace, meta.name)
        before = self._items.pop(meta.uid, None)
        if _is_work(job) or (unit.groups is not None and unit.groups.of(job) is not None):
            index = int(meta.resource_version) if meta.resource_version.isdecimal() else 0
            self._items[meta.uid] = Item(meta.uid, index, meta.labels, self._needs)
        after = self._items.get(meta.uid)
        matters = before is None or after is None or not before.claimed_like(after)
        self._tell(meta.uid, matters)

    def _gone(self, job: JobObject) -> None:
        self.known.pop(job.metadata.uid, None)
        self._items.pop(job.metadata.uid, None)
        self._tell(job.metadata.uid, True)

    def _tell(self, uid: str, matters: bool) -> None:
        for callback in self._subscribers:
            callback({uid}, matters)


class _Jobs:
    """A listener of a unit's jobs."""

    def __init__(
        self, unit: Unit, seen: Callable[[Unit, JobObject], None], gone: Callable[[JobObject], None]
    ) -> None:
        self._unit, self._seen, self.deleted = unit, seen, gone

    def added(self, new: JobObject) -> None:
        """A new job."""
        self._seen(self._unit, new)

    def updated(self, old: JobObject, new: JobObject) -> None:  # noqa: ARG002
        """A changed job."""
        self._seen(self._unit, new)

    def reset(self) -> None:
        """Each change of a reset is told by itself."""


class _Groups:
    """A listener of a unit's gangs: also a job that is over has its gang's object deleted."""

    def __init__(self, unit: Unit, seen: Callable[[Unit, JobObject], None]) -> None:
        self._unit, self._seen = unit, seen

    def added(self, new: Owned) -> None:
        """A new object of a gang."""
        self._look(new)

    def updated(self, old: Owned, new: Owned) -> None:  # noqa: ARG002
        """A changed one."""
        self._look(new)

    def deleted(self, last: Owned) -> None:
        """One is gone."""
        self._look(last)

    def reset(self) -> None:
        """Each change of a reset is told by itself."""

    def _look(self, group: Owned) -> None:
        job = self._unit.jobs.get(group.metadata.namespace, group.metadata.name)
        if job is not None:
            self._seen(self._unit, job)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of a cluster's jobs share; ``wakes`` are theirs, by item."""

    transport: KubernetesTransport
    found: JobItems
    wakes: dict[str, Wake] = field(default_factory=dict)


def _is_work(job: JobObject) -> bool:
    """Whether farms have anything to do for a job, now or later."""
    if job.metadata.terminating:
        return False
    try:
        policy = msgspec.json.decode(job.spec, type=_Brief).run_policy or _Policy()
        finished = job.status.finished
    except (msgspec.DecodeError, InputInvalid):
        return True  # its worker says what is wrong with it
    if policy.managed_by not in MANAGERS:
        return False
    kept = policy.ttl_seconds_after_finished is None and policy.clean_pod_policy in (None, "", "None")
    return not (finished and kept)
