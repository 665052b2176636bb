"""Locks on work items, and the fences of their holders (R3, R8, R9, R12).

A lock is a key that exists only while it is held: ``check-not-exists`` and ``lock`` take it, its
deletion frees it. Its value names the holder and a nonce of the claim and is never rewritten, so the
key's ModifyIndex identifies the claim, and a worker of an earlier claim can write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from store import operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import Conflict, Locked, NotRegistered, OutcomeUnknown, TransactionRejected
from store.keys import Keys
from store.operations import MAX_OPERATIONS, Operation


@dataclass(frozen=True, slots=True)
class Claim:
    """A held lock. ``index`` is the lock key's ModifyIndex."""

    kind: str
    item: str
    key: str
    session: str
    nonce: str
    index: int

    def named(self) -> dict[str, str]:
        """The item as log entries name it.

        Bound to a task's context, it would cost 200 bytes an idle item.
        """
        return {"kind": self.kind, "item": self.item}

    def fence(self) -> list[Operation]:
        """The operations that every transaction under this claim must contain (R12)."""
        return [
            operations.check_session(self.key, self.session),
            operations.check_index(self.key, self.index),
        ]

    def refused(self, error: TransactionRejected) -> bool:
        """Whether a transaction was rejected because the lock does not belong to this claim any more."""
        return error.refused(self.fence())


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder in a lock's value: ``<owner kind>/<owner id>/<claim nonce>``."""

    kind: str
    id: str
    nonce: str

    @classmethod
    def parse(cls, value: bytes) -> Holder:
        """Parse a lock's value; a value that does not parse is an unknown holder, not an error."""
        parts = value.decode("utf-8", "replace").split("/")
        return cls(*parts) if len(parts) == 3 else cls("unknown", value.decode("utf-8", "replace"), "")

    def value(self) -> bytes:
        """The lock's value."""
        return f"{self.kind}/{self.id}/{self.nonce}".encode()


class Locker:
    """Takes, hands over and frees the locks of one kind of work for one holder."""

    def __init__(self, client: ConsulClient, keys: Keys, kind: str) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind

    async def take(
        self, items: Sequence[str], session: str, holder: Holder, schema_index: int
    ) -> tuple[list[Claim], list[str]]:
        """Take the free locks of one batch: (claims, refused items).

        The batch is one transaction; items that Consul rejects are dropped, and the rest is tried again
        at once (R8). After an unknown outcome the keys are read first (R3).

        Raises:
            NotRegistered: the schema changed; read it again before claiming.
        """
        if len(items) > batch_size():
            raise ValueError(f"a batch holds at most {batch_size()} items")
        wanted, refused = list(items), list[str]()
        while wanted:
            try:
                return self._claims(
                    await self._lock(wanted, session, holder, schema_index), holder, session
                ), refused
            except OutcomeUnknown:
                claims = await self._held(wanted, holder, session)
                return claims, refused + [i for i in wanted if i not in {c.item for c in claims}]
            except TransactionRejected as error:
                if error.refused([self._schema_stands(schema_index)]):
                    raise NotRegistered(
                        "the schema record changed while claiming", key=self._keys.schema
                    ) from error
                lost = [item for item in wanted if error.refused(self._taking(item, holder, session))]
                if not lost:
                    raise
                refused += lost
                wanted = [item for item in wanted if item not in lost]
        return [], refused

    async def _lock(self, items: list[str], session: str, holder: Holder, schema_index: int) -> list[Entry]:
        batch = [self._schema_stands(schema_index)]
        for item in items:
            batch += self._taking(item, holder, session)
        return await self._client.transaction(batch)

    def _schema_stands(self, index: int) -> Operation:
        return operations.check_index(self._keys.schema, index)

    def _taking(self, item: str, holder: Holder, session: str) -> list[Operation]:
        key = self._keys.lock(self._kind, item)
        return [operations.check_not_exists(key), operations.lock(key, holder.value(), session)]

    def _claims(self, entries: Iterable[Entry], holder: Holder, session: str) -> list[Claim]:
        claims = []
        for entry in entries:
            if entry.session != session or entry.key == self._keys.schema:
                continue
            kind, item, mutation = self._keys.lock_parts(entry.key)
            if kind == self._kind and not mutation:
                claims.append(Claim(kind, item, entry.key, session, holder.nonce, entry.modify_index))
        return claims

    async def _held(self, items: list[str], holder: Holder, session: str) -> list[Claim]:
        held = []
        for item in items:
            entry = await self._client.read(self._keys.lock(self._kind, item))
            if entry is not None and entry.value == holder.value():
                held.append(entry)
        return self._claims(held, holder, session)

    async def borne_by(self, session: str) -> list[Claim]:
        """Every lock of this kind that the session holds, also those that were handed over to it (R9)."""
        page = await self._client.list(self._keys.tree("locks") + self._kind + "/")
        claims = []
        for entry in (Entry.of(raw) for raw in page.items if raw.session == session):
            kind, item, mutation = self._keys.lock_parts(entry.key)
            if kind == self._kind and not mutation:
                nonce = Holder.parse(entry.value).nonce
                claims.append(Claim(kind, item, entry.key, session, nonce, entry.modify_index))
        return claims

    async def hand_over(self, claims: Sequence[Claim], session: str, receiver: Holder) -> None:
        """Move locks to another session in one transaction, without a gap (R9).

        Raises:
            TransactionRejected: no lock moved: the claim on one has ended, or the receiver's session has.
        """
        batch: list[Operation] = []
        for claim in claims:
            batch += [
                operations.check_index(claim.key, claim.index),
                operations.delete(claim.key),
                operations.lock(claim.key, receiver.value(), session),
            ]
        await self._client.transaction(batch)

    async def free(self, claims: Sequence[Claim]) -> None:
        """Delete up to ``MAX_OPERATIONS`` locks in one transaction, each only if its claim still holds it.

        Raises:
            OutcomeUnknown: some locks may still be held.
        """
        held = list(claims)
        while held:
            freeing = {claim: operations.delete_cas(claim.key, claim.index) for claim in held}
            try:
                await self._client.transaction(list(freeing.values()))
            except TransactionRejected as error:
                held = [claim for claim, operation in freeing.items() if not error.refused([operation])]
                if len(held) == len(freeing):
                    raise
            else:
                return


def batch_size() -> int:
    """How many locks one transaction can take: two operations for each, and one for the schema."""
    return (MAX_OPERATIONS - 1) // 2


class ReplicationControllerLocker(Locker):
    """Ownership locks of replication controllers (p2 ``ReplicationControllerLocker``)."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        super().__init__(client, keys, "rcs")


class MutationLocker:
    """The mutation locks of a kind: only the holder of an item's lock may change its record (R13)."""

    def __init__(self, client: ConsulClient, keys: Keys, kind: str) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind

    def unlocked(self, item: str) -> Operation:
        """A check that nobody holds the lock, for a transaction that changes the item."""
        return operations.check_not_exists(self._keys.mutation_lock(self._kind, item))

    async def holder(self, item: str) -> Holder | None:
        """Who holds the lock; None: nobody does."""
        entry = await self._client.read(self._keys.mutation_lock(self._kind, item))
        return None if entry is None else Holder.parse(entry.value)

    async def take(self, item: str, session: str, holder: Holder) -> Claim:
        """Take the lock.

        Raises:
            Locked: another holder has the lock; the fields name it.
        """
        key = self._keys.mutation_lock(self._kind, item)
        batch = [operations.check_not_exists(key), operations.lock(key, holder.value(), session)]
        try:
            entries = await self._client.transaction(batch)
        except TransactionRejected as error:
            found = await self._client.read(key)
            if found is None:
                raise Conflict(f"{self._kind}/{item}: its mutation lock was contended, try again") from error
            held_by = Holder.parse(found.value)
            raise Locked(
                f"{self._kind}/{item} is locked by {held_by.kind}/{held_by.id}",
                holder=f"{held_by.kind}/{held_by.id}",
                key=key,
            ) from error
        index = max(entry.modify_index for entry in entries if entry.key == key)
        return Claim(self._kind, item, key, session, holder.nonce, index)


class RCNodeTransferLocker(MutationLocker):
    """The mutation locks of RCs. A move of a pod takes none, other than p2's node transfer: each of its
    transactions checks that nobody holds the lock.
    """

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        super().__init__(client, keys, "rcs")
