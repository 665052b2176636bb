"""From a plan of pods to fenced, audited transactions: shared by every kind that places pods.

A change of one pod is one group: its ``pods`` key, its intent and its reservation change together or not at
all. Every transaction carries the claim's fence and the version of the record that was planned from
(R12), and exactly one audit record with the difference that it makes. Own commits are applied to the
caches from the response (R23a); a rejected or unanswered change is read again before anything is planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from farmd.farm.caches import Caches
from farmd.farm.errors import ClaimLost
from scheduler.reservations import Reservation
from store import codec, operations
from store.audit import Audit, AuditLogStore
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.entry import Stored
from store.errors import AccessDenied
from store.intent import Intent
from store.keys import Keys
from store.locks import Claim
from store.operations import Operation
from store.pods import Pod
from store.ports import Clock
from store.sessions import Session
from store.transaction import Batch, Group, Result, pack, submit

REREAD_ONE_BY_ONE = 40


@dataclass(frozen=True, slots=True)
class Change:
    """One pod's change. ``pod`` and ``intent`` are the new records; None means that it goes.

    ``standing`` and ``standing_intent`` are what the change was planned from.
    """

    action: Literal["place", "remove", "replace", "repair"]
    node: str
    instance: str
    pod: Pod | None
    intent: Intent | None
    standing: Stored[Pod] | None = None
    standing_intent: Stored[Intent] | None = None


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Changes that must happen together: one pod's, or all of a node whose reservations change."""

    changes: tuple[Change, ...]
    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a plan: changes that were committed, and whether to read and plan again."""

    committed: int
    replan: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """On whose behalf pods change: names the item in the audit."""

    kind: str
    id: str
    name: str
    actor: str
    record_key: str
    record_index: int


def grouped(changes: Sequence[Change], reservations: Mapping[str, Reservation]) -> Iterator[NodeChanges]:
    """One group a change; a node's changes share one where they change its reservations (R17)."""
    together: dict[str, list[Change]] = {}
    for change in changes:
        if change.node in reservations:
            together.setdefault(change.node, []).append(change)
        else:
            yield NodeChanges((change,))
    for node, members in together.items():
        yield NodeChanges(tuple(members), reservations[node])


def group(subject: NodeChanges, owner: str, keys: Keys) -> Group[NodeChanges]:
    """The operations of changes that happen together or not at all."""
    ops = [operation for change in subject.changes for operation in _operations(change, owner, keys)]
    if subject.reservation is not None:
        ops.append(subject.reservation.operation(keys))
    return Group(tuple(ops), subject)


def _operations(change: Change, owner: str, keys: Keys) -> list[Operation]:
    pod_key = keys.pod(owner, change.node, change.instance)
    ops: list[Operation] = []
    if change.pod is not None:
        index = change.standing.index if change.standing else 0
        if change.action == "repair":
            ops.append(operations.check_index(pod_key, index))
        else:
            ops.append(operations.cas(pod_key, codec.encode(change.pod), index))
    elif change.standing is not None:
        ops.append(operations.delete_cas(pod_key, change.standing.index))
    return ops + _intent_operations(change, owner, keys.intent(change.node, change.instance))


def _intent_operations(change: Change, owner: str, key: str) -> list[Operation]:
    standing = change.standing_intent
    if change.intent is not None:
        return [operations.cas(key, codec.encode(change.intent), standing.index if standing else 0)]
    if standing is None:
        return [operations.check_not_exists(key)]
    if standing.record.owner != owner:
        return []  # somebody else's by now: only our own pod goes
    return [operations.delete_cas(key, standing.index)]


class Placement:
    """Executes changes of pods under a claim. ``records`` is the tree of the records planned from."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        caches: Caches,
        records: PrefixCache[Any],
        audit: AuditLogStore,
        clock: Clock,
    ) -> None:
        self._client = client
        self._keys = keys
        self._caches = caches
        self._records = records
        self._audit = audit
        self._clock = clock

    async def execute(
        self,
        changes: Sequence[Change],
        reservations: Mapping[str, Reservation],
        subject: Subject,
        claim: Claim,
        session: Session,
        *,
        standing: int,
    ) -> Report:
        """Commit changes in full, pipelined transactions. ``standing`` is the owner's pod count before.

        Raises:
            ClaimLost: the fence failed: the lock is no longer this claim's.
            SessionSuspended: the session may have expired; what was sent before counts.
            AccessDenied: Consul's ACL refuses the write.
        """
        fence = [*claim.fence(), operations.check_index(subject.record_key, subject.record_index)]
        batches = pack(
            (group(each, subject.id, self._keys) for each in grouped(changes, reservations)),
            fence=fence,
            trailer=self._trailer(subject, standing),
            trailer_bytes=_audit_bytes,
        )
        committed: list[Result[NodeChanges]] = []
        try:
            results = await submit(
                self._client,
                batches,
                clock=self._clock,
                may_write=session.require,
                committed=committed.append,
            )
        finally:
            # After the last answer, so that it delays no transaction; also when writing was stopped midway.
            self._apply(committed, subject.id)
        return await self._settle(results, subject)

    def _trailer(
        self, subject: Subject, standing: int
    ) -> Callable[[list[Group[NodeChanges]]], list[Operation]]:
        count = standing

        def record(groups: list[Group[NodeChanges]]) -> list[Operation]:
            nonlocal count
            changes = [change for g in groups for change in g.subject.changes]
            before = count
            placed, removed = _places(changes, "place"), _places(changes, "remove")
            count += len(placed) - len(removed)
            actions = sorted({change.action for change in changes})
            audit = Audit(
                at=self._audit.now(),
                actor=subject.actor,
                action=f"pods.{actions[0]}" if len(actions) == 1 else "pods.retarget",
                kind=subject.kind,
                id=subject.id,
                name=subject.name,
                before={"pods": before},
                after={"pods": count},
                placed=placed,
                removed=removed,
                relabelled=_places(changes, "replace", "repair"),
                manifest=next((c.intent.manifest for c in changes if c.intent is not None), ""),
            )
            return [self._audit.operation(audit)]

        return record

    def _apply(self, results: Sequence[Result[NodeChanges]], owner: str) -> None:
        """Own commits reach the caches from the response, not through the watch (R23a)."""
        pods, intents, reserved = set(), set(), set()
        for result in results:
            index = result.index
            for subject in (g.subject for g in result.batch.groups):
                pods |= {self._apply_pod(change, owner, index) for change in subject.changes}
                intents |= {self._apply_intent(change, owner, index) for change in subject.changes}
                if subject.reservation is not None:
                    key = self._keys.reserved(subject.reservation.node)
                    self._caches.reserved.wrote(key, subject.reservation.record, index)
                    reserved.add(key)
        self._caches.pods.notify(pods)
        self._caches.intent.notify(intents)
        self._caches.reserved.notify(reserved)

    def _apply_pod(self, change: Change, owner: str, index: int) -> str:
        key = self._keys.pod(owner, change.node, change.instance)
        if change.pod is None:
            self._caches.pods.removed(key, index)
        elif change.action != "repair":
            self._caches.pods.wrote(key, change.pod, index)
        return key

    def _apply_intent(self, change: Change, owner: str, index: int) -> str:
        key = self._keys.intent(change.node, change.instance)
        if change.intent is not None:
            self._caches.intent.wrote(key, change.intent, index)
        elif change.standing_intent is not None and change.standing_intent.record.owner == owner:
            self._caches.intent.removed(key, index)
        return key

    async def _settle(self, results: Iterable[Result[NodeChanges]], subject: Subject) -> Report:
        """Read again what was rejected or unanswered, before anything is planned from it (R12)."""
        committed, doubtful, reason = 0, list[NodeChanges](), ""
        for result in results:
            if result.committed:
                committed += sum(len(g.subject.changes) for g in result.batch.groups)
                continue
            doubtful += self._doubtful(result.batch, result)
            reason = str(result.rejected or result.error)
        if doubtful or reason:
            await self._records.barrier([subject.record_key])
            await self._reread(doubtful, subject.id)
        return Report(committed, bool(reason), reason)

    def _doubtful(self, batch: Batch[NodeChanges], result: Result[NodeChanges]) -> list[NodeChanges]:
        if result.rejected is None:
            return [g.subject for g in batch.groups]
        outside, failed = batch.failed(result.rejected.errors)
        for error in outside:
            if "permission denied" in error.what.lower():
                raise AccessDenied(error.what)
            if error.index < 2:
                raise ClaimLost(error.what)
        return [g.subject for g in failed]

    async def _reread(self, doubtful: list[NodeChanges], owner: str) -> None:
        changes = [change for each in doubtful for change in each.changes]
        if not changes:
            return
        await self._caches.pods.barrier([self._keys.pod(owner, c.node, c.instance) for c in changes])
        if any(each.reservation for each in doubtful):
            await self._caches.reserved.barrier()
        if len(changes) > REREAD_ONE_BY_ONE:
            await self._caches.intent.barrier()
            return
        await asyncio.gather(*(self._reread_intent(change) for change in changes))

    async def _reread_intent(self, change: Change) -> None:
        key = self._keys.intent(change.node, change.instance)
        index, entry = await self._client.get(key)
        if entry is None:
            self._caches.intent.removed(key, index)
        else:
            self._caches.intent.wrote(key, codec.decode(Intent, entry.value, key), entry.modify_index)
        self._caches.intent.notify({key})


def _audit_bytes(g: Group[NodeChanges]) -> int:
    """What a group adds to the audit record, in base64."""
    return sum((len(change.node) + len(change.instance) + 4) * 4 // 3 + 1 for change in g.subject.changes)


def _places(changes: list[Change], *actions: str) -> list[str]:
    return [f"{change.node}/{change.instance}" for change in changes if change.action in actions]
