"""The chores: old hours of the audit log, manifests that nothing names, leavings of what is gone, and the
ends of people's commands, which go into the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Collection as Collected

import structlog

from farmd.config.sections import HousekeepingSection
from farmd.farm.writer import Writer
from farmd.housekeeping import facts
from farmd.housekeeping.facts import Body, Collection, Round, Seen, Sighting
from farmd.housekeeping.plan import expired, sort_out, window
from farmd.work.context import Context
from store import access, checkpoint, codec, families, operations
from store.access import AccessRecord
from store.audit import Audit, AuditReader, utc_hour
from store.checkpoint import Checkpoint
from store.entry import Entry
from store.errors import Conflict, NotRegistered, RecordInvalid, StoreError
from store.families import RUNS
from store.jobs import Run
from store.keys import is_sentinel
from store.operations import Operation
from store.pods import PodKey

# Pruning the audit log by the hour, after a checkpoint of the pods tree (R25).
#
# What must never break: a replay from the newest checkpoint gives the pods tree at any moment, even if this
# worker dies halfway. So one transaction switches the pointer to a checkpoint after all its parts, and an
# hour is deleted only if every record of it is older than the checkpoint, by ModifyIndex.

log = structlog.get_logger()

# Ten days in one round; after a longer absence the next round goes on.
HOURS_A_ROUND = 240


class AuditPruning:
    """The chore of pruning under one claim."""

    def __init__(self, context: Context, settings: HousekeepingSection, writer: Writer, _: Seen) -> None:
        self._context = context
        self._retention = settings.audit_retention
        self._writer = writer

    async def round(self) -> Round:
        """Delete the hours that are older than the retention; if there are none, write nothing.

        Raises:
            ClaimLost: the claim is over.
            NotRegistered: the pods tree cannot be proven to be whole; nothing is pruned then.
        """
        context = self._context
        hours = await AuditReader(context.client, context.keys).hours()
        previous, pointer = await checkpoint.newest(context.client, context.keys)
        old = expired(hours, now=context.clock.now(), retention=self._retention)
        # An hour that holds the newest checkpoint, with nothing newer after it, waits for the next
        # checkpoint.
        prunable = [hour for hour in old if previous is None or hour != previous.hour or len(hours) > 1]
        if not prunable:
            return Round()
        made = await self._checkpoint(previous, pointer)
        for hour in prunable[:HOURS_A_ROUND]:
            if hour != made.hour:
                await self._prune(hour, made.index)
        return Round(more=len(prunable) > HOURS_A_ROUND)

    async def _prune(self, hour: str, index: int) -> None:
        context = self._context
        prefix = context.keys.audit_hour(hour)
        newest = (await context.client.keys(prefix, mode="consistent")).index
        if newest > index:
            # A process whose clock is behind still writes there: the next checkpoint covers that.
            log.info("audit.hour_kept", hour=hour, newest=newest, checkpoint=index)
            return
        if await self._writer.attempt(operations.delete_tree(prefix)) is not None:
            context.recorder.count("farmd_housekeeping_total", what="pruned")
            log.info("audit.pruned", hour=hour)

    # -- the checkpoint ------------------------------------------------------------------------
    async def _checkpoint(self, previous: Checkpoint | None, pointer: int) -> Checkpoint:
        """Write a checkpoint and point to it.

        Raises:
            Conflict: somebody else changed the pointer.
        """
        context = self._context
        at = context.clock.now()
        hour, checkpoint_id = utc_hour(at), context.ids.new()
        try:
            made = await self._parts(hour, checkpoint_id, at)
            switch = [operations.cas(context.keys.checkpoint, codec.encode(made), pointer)]
            if previous is not None:
                parts = context.keys.checkpoint_parts(previous.hour, previous.id)
                switch.append(operations.delete_tree(parts))
            await self._must(*switch)
        except StoreError:
            await self._discard(hour, checkpoint_id)
            raise
        context.recorder.count("farmd_housekeeping_total", what="checkpoint")
        log.info("audit.checkpoint", index=made.index, pods=made.pods, chunks=made.chunks)
        return made

    async def _parts(self, hour: str, checkpoint_id: str, at: float) -> Checkpoint:
        keys = self._context.keys
        begin = operations.create(keys.checkpoint_begin(hour, checkpoint_id), codec.encode(at))
        index = await self._must(begin)
        pods = await self._pods()
        count = 0
        for count, value in enumerate(checkpoint.chunks(pods), 1):
            key = keys.checkpoint_chunk(hour, checkpoint_id, count - 1)
            await self._must(operations.create(key, value))
        return Checkpoint(id=checkpoint_id, hour=hour, index=index, chunks=count, pods=len(pods), at=at)

    async def _pods(self) -> set[PodKey]:
        """Every pod, read after the checkpoint was begun; the keys contain all that is needed."""
        context, pods = self._context, set[PodKey]()
        for shard in families.shards(context.keys, "pods"):
            page = await context.client.keys(shard, mode="consistent")
            sentinel = context.keys.sentinel(shard)
            if sentinel not in page.items:
                raise NotRegistered(f"{sentinel}: missing, so the answer proves nothing", key=sentinel)
            pods |= {
                PodKey(*context.keys.pod_parts(key))
                for key in page.items
                if not is_sentinel(key) and families.well_formed(context.keys, "pods", key)
            }
            await context.clock.sleep(0)
        return pods

    async def _must(self, *items: operations.Operation) -> int:
        index = await self._writer.attempt(*items)
        if index is None:
            raise Conflict(f"{items[0].key}: somebody else wrote it", key=items[0].key)
        return index

    async def _discard(self, hour: str, checkpoint_id: str) -> None:
        """Delete an unfinished checkpoint, unless the pointer names it after all."""
        context = self._context
        try:
            current, _ = await checkpoint.newest(context.client, context.keys)
            if current is None or current.id != checkpoint_id:
                await self._writer.attempt(
                    operations.delete_tree(context.keys.checkpoint_parts(hour, checkpoint_id))
                )
        except StoreError as error:
            # It is deleted with its hour.
            log.info("audit.checkpoint_left", hour=hour, code=error.code)


# Collects what the store keeps of items of another system that are gone: their statuses and their runs.
#
# An item of another system has no record here, so what is left of it is known by its lock alone, which each
# living item has as long as farms reach that system. A job that is over has none either, and needs neither.
# Runs that name their source are not collected here: the farms of that cluster ask it (R16).

DAY = 86_400.0
STATUS_AGE, RUN_AGE = DAY, 30 * DAY


class LeavingsCollection:
    """The chore of collecting under one claim."""

    def __init__(self, context: Context, settings: HousekeepingSection, writer: Writer, seen: Seen) -> None:  # noqa: ARG002
        self._context = context
        self._condemning = Condemning(
            context,
            writer,
            seen,
            key=str,
            kind="leavings",
            reason="no farm has held its item for a long time",
        )

    async def round(self) -> Round:
        """Look at all of them.

        Raises:
            ClaimLost: the claim is over.
        """
        found = await self._found()
        self._condemning.keep({entry.key for entry, _ in found})
        held = await self._held()
        clock = self._context.clock
        for entry, age in found:
            body = Body(entry.key, entry.modify_index, entry.flags, entry.value)
            if entry.flags:
                self._condemning.sighted(entry.key, entry.modify_index)
            living = {entry.key} if self._item(entry.key) in held else set()
            seen, now, mono = self._condemning.seen, clock.now(), clock.mono()
            chosen = sort_out([body], living, seen, now=now, mono=mono, age=age)
            await self._condemning.carry_out(chosen, self._unheld)
        return Round()

    async def _found(self) -> list[tuple[Entry, float]]:
        """What may be left, each with the age at which it goes."""
        client, keys, found = self._context.client, self._context.keys, list[tuple[Entry, float]]()
        for family in families.outside():
            page = await client.list(keys.status(family.name, ""), mode="consistent")
            found += [(Entry.of(raw), STATUS_AGE) for raw in page.items]
        page = await client.list(keys.tree(RUNS.name), mode="consistent")
        runs = (Entry.of(raw) for raw in page.items)
        return [*found, *((entry, RUN_AGE) for entry in runs if _is_orphan(entry))]

    async def _held(self) -> set[str]:
        """The items of other systems that a farm holds."""
        client, keys = self._context.client, self._context.keys
        pages = [
            await client.keys(keys.lock(each.name, ""), mode="consistent") for each in families.outside()
        ]
        return {keys.lock_parts(key)[1] for page in pages for key in page.items}

    def _unheld(self, key: str) -> tuple[Operation, ...]:
        """Nobody claims the item until its leavings are gone."""
        keys, item = self._context.keys, self._item(key)
        return tuple(operations.check_not_exists(keys.lock(each.name, item)) for each in families.outside())

    def _item(self, key: str) -> str:
        return self._context.keys.last_part(key)


def _is_orphan(entry: Entry) -> bool:
    """Whether it is the run of an item of another system, as a uid shows, and does not name its source."""
    if "-" not in entry.key.rpartition("/")[2]:
        return False
    try:
        return not codec.stored(Run, entry).record.source
    except RecordInvalid:
        return False


# Collects manifests without references (R24).
#
# A manifest is condemned by compare-and-set of its flags; after a wait all references are read again, and
# the manifest is deleted at that very index, with its signatures. A change that makes a record refer to the
# manifest writes the body again in the same transaction (``store.manifests.ensure``). That moves the index,
# and the deletion fails.

MANIFESTS_A_ROUND = 256
_SHA = re.compile(r"[0-9a-f]{64}")


class ManifestCollection:
    """The chore of collecting under one claim."""

    def __init__(self, context: Context, settings: HousekeepingSection, writer: Writer, seen: Seen) -> None:
        self._context = context
        self._age = settings.manifest_age
        self._condemning = Condemning(
            context, writer, seen, key=context.keys.manifest, kind="manifests", reason="nothing refers to it"
        )
        self._cursor = ""

    async def round(self) -> Round:
        """Check a bounded number of manifests to which the caches know no reference.

        Raises:
            ClaimLost: the claim is over.
            NotRegistered: an answer proves nothing; nothing was deleted on its ground.
        """
        context = self._context
        prefix = context.keys.manifest("")
        page = await context.client.keys(prefix, mode="consistent")
        stored = {key[len(prefix) :] for key in page.items if _SHA.fullmatch(key[len(prefix) :])}
        self._condemning.keep(stored)
        candidates = stored - facts.known(context.caches)
        chosen = window(candidates, self._cursor, MANIFESTS_A_ROUND)
        if not chosen:
            return Round()
        bodies = await self._bodies(chosen)
        # The references are read after the bodies: a reference that is made from here on moves the index and
        # defeats the deletion.
        referenced = await facts.referenced(
            context.client, context.keys, context.cluster, context.clock, set(chosen)
        )
        collection = sort_out(
            bodies,
            referenced,
            self._condemning.seen,
            now=context.clock.now(),
            mono=context.clock.mono(),
            age=self._age,
        )
        keys = context.keys
        await self._condemning.carry_out(
            collection, lambda sha: (operations.delete_tree(keys.signatures(sha)),)
        )
        self._cursor = chosen[-1]
        return Round(more=len(candidates) > len(chosen))

    async def _bodies(self, shas: list[str]) -> list[Body]:
        context, found = self._context, []
        for sha in shas:
            entry = await context.client.read(context.keys.manifest(sha), mode="consistent")
            if entry is None:
                continue
            if entry.flags:
                self._condemning.sighted(sha, entry.modify_index)
            found.append(Body(sha, entry.modify_index, entry.flags, entry.value))
        return found


# Moves what agents note of commands in pods to the audit log, which agents may not write (R42).
#
# The key of a note names the node, and Consul lets an agent write those of its own node alone. The record is
# the farm's: an agent neither chooses its time nor changes it later.

ENDS_SECONDS, ENDS_A_ROUND = 60.0, 64
ACTIONS = {"pod.exec", "pod.cp", "pod.port-forward"}
AMOUNTS = ("code", "seconds", "bytes_in", "bytes_out", "connections", "error")
MOST_ENDS_LETTERS = 8192
"""Of each text in a note."""


class AccessAuditing:
    """The chore of auditing how people's commands in pods ended, under one claim."""

    def __init__(self, context: Context, settings: HousekeepingSection, writer: Writer, _: Seen) -> None:
        del settings
        self._context = context
        self._writer = writer

    async def round(self) -> Round:
        """Move what is over.

        Raises:
            ClaimLost: the claim is over.
        """
        prefix = self._context.keys.accesses(access.ENDS)
        page = await self._context.client.list(prefix, mode="consistent")
        moved = 0
        for raw in page.items:
            entry = Entry.of(raw)
            node, _, ident = entry.key.removeprefix(prefix).partition("/")
            try:
                note = codec.decode(AccessRecord, entry.value, entry.key)
            except RecordInvalid as error:
                log.warning("access.note_unreadable", reason=error.message)
                await self._writer.attempt(operations.delete_cas(entry.key, entry.modify_index))
                continue
            if note.ended and ident and moved < ENDS_A_ROUND:
                moved += 1
                record = self._context.audit.operation(self._record(node, note))
                await self._writer.attempt(operations.delete_cas(entry.key, entry.modify_index), record)
        return Round(more=moved == ENDS_A_ROUND)

    def _record(self, node: str, note: AccessRecord) -> Audit:
        pod, wanted = f"{node}/{note.instance[:MOST_ENDS_LETTERS]}", note.exec
        action = (
            wanted.action if wanted.action in ACTIONS else "pod.port-forward" if wanted.port else "pod.exec"
        )
        how = {name: note.how[name] for name in AMOUNTS if name in note.how}
        after = {"by": note.by, **access.told(wanted), **how}
        return Audit(
            at=self._context.audit.now(),
            actor=f"agent/{node}",
            action=f"{action}-ended",
            kind="pods",
            id=pod,
            name=pod,
            reason=note.reason[:MOST_ENDS_LETTERS],
            after={
                name: each[:MOST_ENDS_LETTERS] if isinstance(each, str) else each
                for name, each in after.items()
            },
        )


# Deletes stored values in two steps: condemned first, and deleted later at the very index of that (R24).
#
# A value is condemned by compare-and-set of its flags. If somebody writes it again meanwhile, its index moves
# and the deletion fails. A farm remembers since when it has seen a value condemned at an index, even while
# another farm has the chore: a chore that often changes hands would otherwise never delete anything. After a
# restore of the store that memory proves nothing.


class Condemning:
    """The condemnations that one chore has seen, and its writes. ``key`` is where a value of that name lies,
    ``kind`` and ``reason`` are for the audit.
    """

    def __init__(
        self,
        context: Context,
        writer: Writer,
        seen: Seen,
        *,
        key: Callable[[str], str],
        kind: str,
        reason: str,
    ) -> None:
        self.seen = seen
        self._context, self._writer = context, writer
        self._key, self._kind, self._reason = key, kind, reason

    def keep(self, names: Collected[str]) -> None:
        """Forget the condemnations of all other values."""
        for name in self.seen.keys() - set(names):
            del self.seen[name]

    def sighted(self, name: str, index: int) -> None:
        """The value was seen condemned at this index."""
        known = self.seen.get(name)
        if known is None or known.index != index:
            self.seen[name] = Sighting(index, self._context.clock.mono())

    async def carry_out(
        self, collection: Collection, beside: Callable[[str], tuple[Operation, ...]] = lambda _: ()
    ) -> None:
        """Condemn, absolve and delete; ``beside`` happens with the deletion of a value, or both do not."""
        context, now = self._context, int(self._context.clock.now())
        for body in collection.condemn:
            index = await self._flag(body, now)
            if index is not None:
                self.sighted(body.name, index)
                context.recorder.count("farmd_housekeeping_total", what="condemned")
        for body in collection.absolve:
            if await self._flag(body, 0) is not None:
                context.recorder.count("farmd_housekeeping_total", what="absolved")
        for body in collection.collect:
            await self._collect(body, beside(body.name))

    async def _flag(self, body: Body, flags: int) -> int | None:
        key = self._key(body.name)
        return await self._writer.attempt(operations.cas(key, body.value, body.index, flags=flags))

    async def _collect(self, body: Body, beside: tuple[Operation, ...]) -> None:
        context = self._context
        record = Audit(
            at=context.audit.now(),
            actor=context.actor,
            action=f"{self._kind.removesuffix('s')}.collect",
            kind=self._kind,
            id=body.name,
            reason=self._reason,
            before={"exists": True},
            after={"exists": False},
        )
        deletion = operations.delete_cas(self._key(body.name), body.index)
        if await self._writer.attempt(*beside, deletion, context.audit.operation(record)) is not None:
            self.seen.pop(body.name, None)
            context.recorder.count("farmd_housekeeping_total", what="collected")
            log.info("housekeeping.collected", kind=self._kind, name=body.name)
