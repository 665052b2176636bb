"""The jobs of a cluster as items of work, and what all their workers share.

A job that was deleted and made anew under its name is another item. A job that is over and that nobody has
to clean or delete any more is none: it costs no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from farmd.farm.plan import Item
from farmd.kubernetes.jobs.unit import Handled, JobObject, Unit, latest
from farmd.kubernetes.objects import Owned
from farmd.kubernetes.store import version_of
from farmd.kubernetes.transport import KubernetesTransport
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
    """The items of all units (``farmd.farm.kind.Items``)."""

    def __init__(self, units: Sequence[Unit], needs: tuple[str, ...]) -> None:
        self.known: dict[str, Known] = {}
        self._units, self._needs = units, needs
        self._items: dict[str, Item] = {}
        self._subscribers: list[Callable[[set[str], bool], None]] = []
        for unit in units:
            seen, look = partial(self._seen, unit), partial(self._look, unit)
            # Each change of a reset is told by itself.
            unit.jobs.listen(Handled(seen, latest(seen), self._gone, _nothing))
            if unit.groups is not None:
                unit.groups.store.listen(Handled(look, latest(look), look, _nothing))

    def items(self) -> Mapping[str, Item]:
        """All jobs that are work."""
        return self._items

    def trusted(self) -> bool:
        """Whether every job was known once: from then on none leaves but by its deletion, or by a whole list
        that lacks it.
        """
        return all(unit.synced for unit in self._units)

    def leave(self, uid: str, where: Known) -> None:
        """Have whoever claims it look at a job that was there and is not known any more."""
        if uid not in self.known:
            self.known[uid] = where
            self._items[uid] = Item(uid, 0, {}, self._needs)
            self._tell(uid, True)

    def forget(self, uid: str) -> None:
        """The API server has the job no more."""
        self.known.pop(uid, None)
        self._items.pop(uid, None)
        self._tell(uid, True)

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
            self._items[meta.uid] = Item(meta.uid, version_of(job), meta.labels, self._needs)
        after = self._items.get(meta.uid)
        matters = before is None or after is None or not before.claimed_like(after)
        self._tell(meta.uid, matters)

    def _look(self, unit: Unit, group: Owned) -> None:
        """A change of a gang's object: also a job that is over has it deleted."""
        job = unit.jobs.get(group.metadata.namespace, group.metadata.name)
        if job is not None:
            self._seen(unit, job)

    def _gone(self, job: JobObject) -> None:
        self.forget(job.metadata.uid)

    def _tell(self, uid: str, matters: bool) -> None:
        for callback in self._subscribers:
            callback({uid}, matters)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of a cluster's jobs share: its name among them; ``wakes`` are theirs, by item."""

    cluster: str
    transport: KubernetesTransport
    found: JobItems
    wakes: dict[str, Wake] = field(default_factory=dict)


def _nothing() -> None:
    """What a reset calls."""


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
