"""Edits of records that own pods: what is the same for all families of them.

Every edit names the version of the record that it was read at and respects its mutation lock (R13);
nothing deletes a record that may still have pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from farmd.commands import difference
from farmd.commands.mutation import Call, Change, Guard, Mutation, guard
from farmd.commands.mutation import commit as write
from store import codec, manifests, operations
from store.entry import Stored
from store.errors import Conflict, NotFound, NotRegistered, RecordInvalid
from store.keys import is_sentinel
from store.manifests import Manifest
from store.named import NamedRecords, Owner
from store.nodes import Reserved
from store.operations import Operation
from store.reality import Reality
from store.work import Work

T = TypeVar("T", bound=Owner)


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """One family of such records: its kind of work, the word that people use, and where they lie."""

    kind: str
    noun: str
    records: NamedRecords[T]

    async def find(self, target: str, *, by_name: bool = False) -> Stored[T]:
        """One record by name, id or beginning of an id; ``by_name``: by its whole name only.

        Raises:
            NotFound: there is none. Ambiguous: several fit.
        """
        if not by_name:
            return await self.records.find(target)
        named, _ = await self.records.named(target)
        if named is None:
            hint = f"farmctl {self.noun} create makes it"
            raise NotFound(f"{self.noun} {target!r} does not exist", kind=self.kind, id=target, hint=hint)
        return named

    def refuse_deleting(self, record: T) -> None:
        """Raise ``Conflict`` for a record that is on its way out."""
        if record.deleting:
            raise Conflict(
                f"{self.noun} {record.name!r} is being deleted",
                id=record.id,
                hint=f"a farm finishes it; farmctl {self.noun} describe {record.name} tells how far it is",
            )

    async def guard(self, call: Call, record: T) -> Guard:
        """What respects the record's mutation lock (R13).

        Raises:
            Locked: somebody holds it.
        """
        return await guard(call, self.kind, record.id, f"{self.noun} {record.name!r}")

    def edit(
        self,
        stored: Stored[T],
        wanted: T,
        held: Guard,
        action: str,
        *,
        destructive: bool = False,
        details: tuple[str, ...] = (),
        extra: tuple[Operation, ...] = (),
        anew: bool = False,
    ) -> Mutation:
        """Replace a record, if it differs, or ``anew``. ``action`` is the verb, such as ``enable``."""
        record = stored.record
        assert isinstance(record, msgspec.Struct)
        assert isinstance(wanted, msgspec.Struct)
        before, after = difference.fields(record, wanted)
        if wanted.deleting and not record.deleting:
            before, after = {**before, "deleting": False}, {**after, "deleting": True}
        change = Change(
            self.kind,
            record.id,
            record.name,
            f"{self.noun}.{action}",
            before={**before, **held.before},
            after={**after, **held.after},
            details=details,
            destructive=destructive or bool(held.before),
            manifest=wanted.manifest if wanted.manifest != record.manifest else "",
        )
        if wanted == record and not anew:
            return Mutation(change)
        return Mutation(change, (*held.operations, *extra, self.records.replace(stored, wanted)))

    async def removal(self, call: Call, stored: Stored[T], held: Guard) -> Mutation:
        """Delete a record that wants no pods and has none, with the room that it holds without a pod.

        No worker will be there to give it back. What a worker writes at this very moment fails on the record
        that is gone (R12).
        """
        record = stored.record
        room = await _move_room(call, self.kind, record.id)
        change = Change(
            self.kind,
            record.id,
            record.name,
            f"{self.noun}.delete",
            before={"exists": True, **held.before, **({"reservations": 1} if room else {})},
            after={"exists": False, **held.after, **({"reservations": 0} if room else {})},
            destructive=True,
        )
        return Mutation(change, (*held.operations, *self.records.delete(stored), *room))

    async def same(self, call: Call, existing: Stored[T], wanted: T, pod: Manifest, hint: str) -> Mutation:
        """Creating what exists already: nothing to do if it is equal.

        Raises:
            Conflict: it differs, and the message and ``fields["differs"]`` name the fields; or it is
                being deleted.
        """
        record = existing.record
        if record.deleting:
            raise Conflict(
                f"{self.noun} {wanted.name!r} is being deleted", id=record.id, hint="wait until it is gone"
            )
        assert isinstance(record, msgspec.Struct)
        assert isinstance(wanted, msgspec.Struct)
        before, after = difference.fields(record, wanted)
        if not before:
            return Mutation(Change(self.kind, record.id, record.name, f"{self.noun}.create"))
        names = [f"{name} ({before[name]} -> {after[name]})" for name in after if name != "pod"]
        if "pod" in after:
            names += [line.partition(":")[0] for line in await manifest_lines(call, record.manifest, pod)]
        raise Conflict(
            f"{self.noun} {wanted.name!r} exists and differs: {', '.join(names)}",
            id=record.id,
            differs=list(after),
            hint=hint,
        )


async def commit_creation(
    call: Call, mutation: Mutation, again: Callable[[], Awaitable[Mutation]]
) -> Mutation:
    """Commit a creation; if somebody else created an equal one meanwhile, that is as good.

    Raises:
        Conflict: somebody created a different one meanwhile.
    """
    try:
        await write(call, mutation)
    except Conflict:
        repeated = await again()
        if repeated.needed:
            raise
        return repeated
    return mutation


async def pods_left(call: Call, owner: str) -> int:
    """How many pods an owner has now, by a read that no stale server answers (R15).

    Raises:
        NotRegistered: nothing was found, and no sentinel proves that there is nothing (R20).
    """
    page = await call.client.keys(call.keys.pods(owner), mode="consistent")
    if not page.items:
        sentinel = call.keys.sentinel(call.keys.tree("pods"))
        if await call.client.read(sentinel, mode="consistent") is None:
            raise NotRegistered(f"pods of {owner}: found no sentinel, expected {sentinel}", key=sentinel)
    return sum(not is_sentinel(key) for key in page.items)


async def processes_left(call: Call, owner: str) -> int:
    """How many processes nodes still run for an owner, as their agents last said."""
    page = await call.client.list(call.keys.tree("reality"), mode="consistent")
    found = 0
    for raw in page.items:
        try:
            if not is_sentinel(raw.key):
                found += codec.decode(Reality, raw.decoded(), raw.key).owner == owner
        except RecordInvalid:
            continue  # the doctor reports it, and its agent writes it anew
    return found


async def _move_room(call: Call, kind: str, item: str) -> tuple[Operation, ...]:
    """Gives back what a move has reserved, where nobody is to run (W16); empty where nothing is reserved."""
    entry = await call.client.read(call.keys.work(kind, item), mode="consistent")
    try:
        work = codec.decode(Work, entry.value, entry.key) if entry is not None else Work()
        if work.transfer is None:
            return ()
        node, instance = work.transfer.new
        entry = await call.client.read(call.keys.reserved(node), mode="consistent")
        if entry is None or instance not in (book := codec.stored(Reserved, entry)).record.instances:
            return ()
    except RecordInvalid:
        return ()  # it names no place or room; the doctor finds what nobody has any more
    intent = call.keys.intent(node, instance)
    if await call.client.read(intent, mode="consistent") is not None:
        return ()
    value = codec.rewrite(book.record.without([instance]), book.raw)
    return (
        operations.check_not_exists(intent),
        operations.cas(book.key, value, book.index, flags=book.flags),
    )


async def body_lost(call: Call, sha: str) -> bool:
    """Whether a manifest that a record refers to is missing or corrupt, so that it must be written again."""
    try:
        await manifests.read_body(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        return True
    return False


async def manifest_lines(call: Call, sha: str, pod: Manifest) -> tuple[str, ...]:
    """What a pod changes of the manifest that stands, a line a field."""
    try:
        before = await manifests.read(call.client, call.keys, sha)
    except (NotFound, RecordInvalid):
        before = None
    return tuple(difference.manifest_lines(before, pod))
