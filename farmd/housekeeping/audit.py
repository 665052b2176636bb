"""Pruning the audit log by the hour, after a checkpoint of the pods tree (R25).

What must never break: a replay from the newest checkpoint gives the pods tree at any moment, even if this
worker dies halfway. So one transaction switches the pointer to a checkpoint after all its parts, and an hour
is deleted only if every record of it is older than the checkpoint, by ModifyIndex.
"""

from __future__ import annotations

import structlog

from farmd.config.sections import HousekeepingSection
from farmd.farm.writer import Writer
from farmd.housekeeping.model import Round, Seen
from farmd.housekeeping.plan import expired
from farmd.work.context import Context
from store import checkpoint, codec, families, operations
from store.audit import AuditReader, utc_hour
from store.checkpoint import Checkpoint
from store.errors import Conflict, NotRegistered, StoreError
from store.keys import is_sentinel
from store.pods import PodKey

log = structlog.get_logger()

# Ten days in one round; after a longer absence the next round goes on.
A_ROUND = 240


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
        for hour in prunable[:A_ROUND]:
            if hour != made.hour:
                await self._prune(hour, made.index)
        return Round(more=len(prunable) > A_ROUND)

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
