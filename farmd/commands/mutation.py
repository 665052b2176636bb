"""One change that a person asks for: prepared, shown, then written in one audited transaction.

Commands return a ``Mutation``, which has written nothing yet. Callers print its ``change``, ask if it is
destructive, and pass it to ``commit`` or not (``--dry-run``). What must never break: the audit record is in
the change's own transaction, and an item whose mutation lock someone else holds is not edited (R13).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farmd import kinds
from farmd.commands.outlook import Foretold
from store import operations
from store.audit import Audit, AuditLogStore
from store.errors import (
    Conflict,
    InputInvalid,
    Locked,
    NotRegistered,
    OutcomeUnknown,
    TransactionRejected,
)
from store.keys import Keys
from store.locks import Holder, MutationLocker
from store.operations import Operation
from store.ports import Clock, Ids
from store.times import rfc3339

if TYPE_CHECKING:
    from farmd.commands.fleet import Fleet
    from store.consul.client import ConsulClient

Scalar = int | str | bool

MUTATION_LOCK = "mutation_lock"


@dataclass(frozen=True, slots=True)
class Call:
    """The caller of a command, with a reason and the means. ``actor`` is ``user/<name>@<host>``; ``force``
    breaks a lock, ``supersede`` takes services from a deployment that is under way.

    ``note`` shows the caller something beside the result.

    ``part_of`` is what the caller acts for, such as ``apps/shop``: records that it makes or changes become
    parts of that, and ``open`` are the fields of theirs that stay to others (R14).
    """

    client: ConsulClient
    keys: Keys
    clock: Clock
    ids: Ids
    actor: str
    reason: str = ""
    force: bool = False
    supersede: bool = False
    part_of: str = ""
    open: tuple[str, ...] = ()
    note: Callable[[str], None] = field(default=lambda _: None, compare=False)


@dataclass(frozen=True, slots=True)
class Change:
    """The fields before and after a mutation, for people and for the audit.

    ``details`` are lines for people only. ``destructive``: ask before it is written. ``removed`` are pods of
    the item that are removed with it, ``relabelled`` those that are changed, each ``<node>/<instance>``.
    ``object`` is the name that people used, if they named something else than the item.
    """

    kind: str
    id: str
    name: str
    action: str
    before: dict[str, Scalar] = field(default_factory=dict)
    after: dict[str, Scalar] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    destructive: bool = False
    manifest: str = ""
    removed: tuple[str, ...] = ()
    relabelled: tuple[str, ...] = ()
    object: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change and the operations that make it; without operations there is nothing to change.

    ``outlook`` forecasts what it will do to pods of a fleet that was read; only ``--dry-run`` calls it.
    """

    change: Change
    operations: tuple[Operation, ...] = ()
    outlook: Callable[[Fleet], Awaitable[Foretold]] | None = field(default=None, compare=False)

    @property
    def needed(self) -> bool:
        """Whether anything differs from what was asked for."""
        return bool(self.operations)


@dataclass(frozen=True, slots=True)
class Guard:
    """Operations that respect or break an item's mutation lock, and what to audit of it."""

    operations: tuple[Operation, ...]
    before: dict[str, Scalar] = field(default_factory=dict)
    after: dict[str, Scalar] = field(default_factory=dict)


async def guard(call: Call, kind: str, item: str, title: str) -> Guard:
    """The operations that every edit of an item needs (R13).

    Raises:
        Locked: somebody holds the mutation lock and the call does not force.
        InputInvalid: it forces without a reason.
    """
    if call.force and not call.reason:
        raise InputInvalid("reason: missing, expected why force is needed (--reason)", field="reason")
    key = call.keys.mutation_lock(kind, item)
    entry = await call.client.read(key)
    if entry is None:
        return Guard((operations.check_not_exists(key),))
    holder = Holder.parse(entry.value)
    if not call.force:
        raise _locked(title, key, holder)
    broken = f"{holder.kind}/{holder.id}"
    return Guard(
        (operations.delete_cas(key, entry.modify_index),), {MUTATION_LOCK: broken}, {MUTATION_LOCK: ""}
    )


def _locked(title: str, key: str, holder: Holder) -> Locked:
    return Locked(
        f"{title} is locked by {holder_told(holder)}",
        holder=f"{holder.kind}/{holder.id}",
        since=_since(holder),
        key=key,
        hint="wait until it is done, or break the lock with --force --reason TEXT",
    )


def holder_told(holder: Holder) -> str:
    """The holder of a mutation lock and the time: ``user/ada@host since 2026-11-21T16:36:40Z``."""
    since = _since(holder)
    return f"{holder.kind}/{holder.id}{f' since {since}' if since else ''}"


async def lock_told(call: Call, kind: str, item: str) -> str:
    """The holder of an item's mutation lock, in words; empty: it is free."""
    holder = await MutationLocker(call.client, call.keys, kind).holder(item)
    return "" if holder is None else f"locked by {holder_told(holder)}"


def _since(holder: Holder) -> str:
    """When a mutation lock was taken; its nonce ends in ``@<unix seconds>``."""
    _, found, at = holder.nonce.rpartition("@")
    if not found or not at.isdecimal() or len(at) > 11:
        return ""
    return rfc3339(int(at))


async def registered(call: Call) -> Operation:
    """A check that the cluster is registered and stays the same one until the transaction.

    Raises:
        NotRegistered: no cluster lives under this prefix.
    """
    entry = await call.client.read(call.keys.cluster)
    if entry is None:
        raise NotRegistered(
            f"no cluster is registered under {call.keys.prefix!r}",
            key=call.keys.cluster,
            hint="start a farm first (farmd run, or farmd dev), or check --http-addr and the prefix",
        )
    return operations.check_index(call.keys.cluster, entry.modify_index)


def audited(call: Call, change: Change) -> Operation:
    """The write of a change's audit record, with the caller as its actor."""
    log = AuditLogStore(call.keys, call.clock, call.ids)
    return log.operation(
        Audit(
            at=log.now(),
            actor=call.actor,
            action=change.action,
            kind=change.kind,
            id=change.id,
            name=change.name,
            reason=call.reason,
            before=change.before,
            after=change.after,
            manifest=change.manifest,
            removed=list(change.removed),
            relabelled=list(change.relabelled),
        )
    )


def title(change: Change) -> str:
    """What is changed as people write it: ``rc/hello``."""
    return change.object or kinds.title(change.kind, change.name)


async def commit(call: Call, mutation: Mutation) -> None:
    """Write a prepared mutation with its audit record, all or nothing; nothing if it is not needed.

    Raises:
        Conflict: the item changed since it was read; nothing was written.
        Locked: somebody took the mutation lock meanwhile; nothing was written.
        OutcomeUnknown: no answer came, and the audit record is not there (yet).
    """
    if not mutation.needed:
        return
    change, record = mutation.change, audited(call, mutation.change)
    try:
        await call.client.transaction([*mutation.operations, record])
    except TransactionRejected as error:
        # The network may have sent the transaction twice: then its own first copy refused the second one.
        if await call.client.read(record.key, mode="consistent") is not None:
            return
        await _explain(call, change)
        raise Conflict(
            f"{title(change)} changed since it was read; nothing was written",
            id=change.id,
            hint="look at it again and repeat the command",
        ) from error
    except OutcomeUnknown:
        # The audit record has a new key and is in the same transaction, so its presence proves the change
        # (R12).
        if await call.client.read(record.key, mode="consistent") is None:
            raise


async def _explain(call: Call, change: Change) -> None:
    holder = await MutationLocker(call.client, call.keys, change.kind).holder(change.id)
    if holder is not None:
        raise _locked(title(change), call.keys.mutation_lock(change.kind, change.id), holder)
