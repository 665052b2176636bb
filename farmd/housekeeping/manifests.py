"""Collecting manifests that nothing refers to (R24).

Condemn by compare-and-set of the flags, wait, read all references again, delete at that very index.
Whoever makes a record refer to a manifest sets its body again in the same transaction
(``store.manifests.ensure``), which moves the index: the deletion then fails, and that is the point.
"""

from __future__ import annotations

import re

import structlog

from farmd.housekeeping import references
from farmd.housekeeping.model import Body, Collection, Outcome, Sighting
from farmd.housekeeping.pen import Pen
from farmd.housekeeping.plan import sort_out, window
from farmd.housekeeping.tools import Tools
from store import operations
from store.audit import Audit

log = structlog.get_logger()

A_ROUND = 256
_SHA = re.compile(r"[0-9a-f]{64}")


class ManifestCollection:
    """The chore under one claim. What it remembers starts anew with each claim, and with it the wait."""

    def __init__(self, tools: Tools, pen: Pen) -> None:
        self._tools = tools
        self._pen = pen
        self._seen: dict[str, Sighting] = {}
        self._cursor = ""

    async def round(self) -> Outcome:
        """Look at a bounded number of manifests that the caches know no reference to.

        Raises:
            ClaimLost: the claim is over.
            NotRegistered: an answer proves nothing; nothing was deleted on its ground.
        """
        tools = self._tools
        prefix = tools.keys.manifest("")
        page = await tools.client.keys(prefix, mode="consistent")
        stored = {key[len(prefix) :] for key in page.items if _SHA.fullmatch(key[len(prefix) :])}
        self._seen = {sha: sighting for sha, sighting in self._seen.items() if sha in stored}
        candidates = stored - tools.known_references()
        chosen = window(candidates, self._cursor, A_ROUND)
        if not chosen:
            return Outcome()
        bodies = await self._bodies(chosen)
        # After the bodies: whoever refers to one from here on moves its index and defeats the deletion.
        referenced = await references.referenced(
            tools.client, tools.keys, tools.cluster, tools.clock, set(chosen)
        )
        collection = sort_out(
            bodies,
            referenced,
            self._seen,
            now=tools.clock.now(),
            mono=tools.clock.mono(),
            age=tools.settings.manifest_age,
        )
        await self._carry_out(collection)
        self._cursor = chosen[-1]
        return Outcome(more=len(candidates) > len(chosen))

    async def _bodies(self, shas: list[str]) -> list[Body]:
        tools, found = self._tools, []
        for sha in shas:
            entry = await tools.client.read(tools.keys.manifest(sha), mode="consistent")
            if entry is None:
                continue
            if entry.flags:
                self._sighted(sha, entry.modify_index)
            found.append(Body(sha, entry.modify_index, entry.flags, entry.value))
        return found

    def _sighted(self, sha: str, index: int) -> None:
        known = self._seen.get(sha)
        if known is None or known.index != index:
            self._seen[sha] = Sighting(index, self._tools.clock.mono())

    async def _carry_out(self, collection: Collection) -> None:
        tools, now = self._tools, int(self._tools.clock.now())
        for body in collection.condemn:
            index = await self._flag(body, now)
            if index is not None:
                self._sighted(body.sha, index)
                tools.recorder.count("farmd_housekeeping_total", what="condemned")
        for body in collection.absolve:
            if await self._flag(body, 0) is not None:
                tools.recorder.count("farmd_housekeeping_total", what="absolved")
        for body in collection.collect:
            await self._collect(body)

    async def _flag(self, body: Body, flags: int) -> int | None:
        key = self._tools.keys.manifest(body.sha)
        return await self._pen.write(operations.cas(key, body.value, body.index, flags=flags))

    async def _collect(self, body: Body) -> None:
        tools = self._tools
        record = Audit(
            at=tools.audit.now(),
            actor=f"farm/{tools.farm}",
            action="manifest.collect",
            kind="manifests",
            id=body.sha,
            reason="nothing refers to it",
            before={"exists": True},
            after={"exists": False},
        )
        deletion = operations.delete_cas(tools.keys.manifest(body.sha), body.index)
        if await self._pen.write(deletion, tools.audit.operation(record)) is not None:
            self._seen.pop(body.sha, None)
            tools.recorder.count("farmd_housekeeping_total", what="collected")
            log.info("manifest.collected", sha=body.sha)
