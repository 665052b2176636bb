"""Collects what the store keeps of items of another system that are gone: their statuses and their runs.

An item of another system has no record here, so what is left of it is known by its lock alone, which each
living item has as long as farms reach that system. A job that is over has none either, and needs neither.
Runs that name their source are not collected here: the farms of that cluster ask it (R16).
"""

from __future__ import annotations

from farmd.config.sections import HousekeepingSection
from farmd.farm.writer import Writer
from farmd.housekeeping.condemning import Condemning
from farmd.housekeeping.model import Body, Round, Seen
from farmd.housekeeping.plan import sort_out
from farmd.work.context import Context
from store import codec, families, operations
from store.entry import Entry
from store.errors import RecordInvalid
from store.families import RUNS
from store.jobs import Run
from store.operations import Operation

DAY = 86_400.0
STATUS_AGE, RUN_AGE = DAY, 30 * DAY


class LeavingsCollection:
    """The chore of collecting under one claim."""

    def __init__(self, context: Context, settings: HousekeepingSection, writer: Writer, seen: Seen) -> None:  # noqa: ARG002
        self._context = context
        self._condemning = Condemning(
            context, writer, seen, key=str, kind="leavings", reason="no farm has held its item since long"
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
