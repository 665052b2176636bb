"""Collects manifests without references (R24).

A manifest is condemned by compare-and-set of its flags; after a wait all references are read again, and the
manifest is deleted at that very index. A change that makes a record refer to the manifest writes the body
again in the same transaction (``store.manifests.ensure``). That moves the index, and the deletion fails.
"""

from __future__ import annotations

import re

import structlog

from farmd.farm.writer import Writer
from farmd.housekeeping import references
from farmd.housekeeping.model import Body, Collection, HousekeepingSettings, Round, Sighting
from farmd.housekeeping.plan import sort_out, window
from farmd.work.context import Context
from store import operations
from store.audit import Audit

log = structlog.get_logger()

A_ROUND = 256
_SHA = re.compile(r"[0-9a-f]{64}")


class ManifestCollection:
    """The chore of collecting under one claim. Each claim begins with an empty memory, and so with a new
    wait.
    """

    def __init__(self, context: Context, settings: HousekeepingSettings, writer: Writer) -> None:
        self._context = context
        self._age = settings.manifest_age
        self._writer = writer
        self._seen: dict[str, Sighting] = {}
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
        self._seen = {sha: sighting for sha, sighting in self._seen.items() if sha in stored}
        candidates = stored - references.known(context.caches)
        chosen = window(candidates, self._cursor, A_ROUND)
        if not chosen:
            return Round()
        bodies = await self._bodies(chosen)
        # The references are read after the bodies: a reference that is made from here on moves the index and
        # defeats the deletion.
        referenced = await references.referenced(
            context.client, context.keys, context.cluster, context.clock, set(chosen)
        )
        collection = sort_out(
            bodies,
            referenced,
            self._seen,
            now=context.clock.now(),
            mono=context.clock.mono(),
            age=self._age,
        )
        await self._carry_out(collection)
        self._cursor = chosen[-1]
        return Round(more=len(candidates) > len(chosen))

    async def _bodies(self, shas: list[str]) -> list[Body]:
        context, found = self._context, []
        for sha in shas:
            entry = await context.client.read(context.keys.manifest(sha), mode="consistent")
            if entry is None:
                continue
            if entry.flags:
                self._sighted(sha, entry.modify_index)
            found.append(Body(sha, entry.modify_index, entry.flags, entry.value))
        return found

    def _sighted(self, sha: str, index: int) -> None:
        known = self._seen.get(sha)
        if known is None or known.index != index:
            self._seen[sha] = Sighting(index, self._context.clock.mono())

    async def _carry_out(self, collection: Collection) -> None:
        context, now = self._context, int(self._context.clock.now())
        for body in collection.condemn:
            index = await self._flag(body, now)
            if index is not None:
                self._sighted(body.sha, index)
                context.recorder.count("farmd_housekeeping_total", what="condemned")
        for body in collection.absolve:
            if await self._flag(body, 0) is not None:
                context.recorder.count("farmd_housekeeping_total", what="absolved")
        for body in collection.collect:
            await self._collect(body)

    async def _flag(self, body: Body, flags: int) -> int | None:
        key = self._context.keys.manifest(body.sha)
        return await self._writer.attempt(operations.cas(key, body.value, body.index, flags=flags))

    async def _collect(self, body: Body) -> None:
        context = self._context
        record = Audit(
            at=context.audit.now(),
            actor=context.actor,
            action="manifest.collect",
            kind="manifests",
            id=body.sha,
            reason="nothing refers to it",
            before={"exists": True},
            after={"exists": False},
        )
        deletion = operations.delete_cas(context.keys.manifest(body.sha), body.index)
        if await self._writer.attempt(deletion, context.audit.operation(record)) is not None:
            self._seen.pop(body.sha, None)
            context.recorder.count("farmd_housekeeping_total", what="collected")
            log.info("manifest.collected", sha=body.sha)
