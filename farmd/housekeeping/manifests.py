"""Collects manifests without references (R24).

A manifest is condemned by compare-and-set of its flags; after a wait all references are read again, and the
manifest is deleted at that very index, with its signatures. A change that makes a record refer to the
manifest writes the body again in the same transaction (``store.manifests.ensure``). That moves the index, and
the deletion fails.
"""

from __future__ import annotations

import re

from farmd.config.sections import HousekeepingSection
from farmd.farm.writer import Writer
from farmd.housekeeping import references
from farmd.housekeeping.condemning import Condemning
from farmd.housekeeping.model import Body, Round, Seen
from farmd.housekeeping.plan import sort_out, window
from farmd.work.context import Context
from store import operations

A_ROUND = 256
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
