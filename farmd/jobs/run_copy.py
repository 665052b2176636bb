"""The one record of a job that no watch covers, ``runs/<id>``: read once a claim, then followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.work.context import Context
from store import codec
from store.entry import Entry, Stored
from store.errors import RecordInvalid
from store.families import RUNS
from store.jobs import Run

READ_ONE_BY_ONE = 16


class RunCopy:
    """What is known of a job's run, for either backend; it learns of its own worker's commits
    (``farmd.farm.writer.Copy``).
    """

    __slots__ = ("known", "stored")

    def __init__(self, stored: Stored[Run] | None = None, *, known: bool = False) -> None:
        self.stored = stored
        self.known = known

    def wrote(self, key: str, record: Any, index: int, raw: bytes = b"") -> None:
        """The worker's own commit."""
        self.stored, self.known = Stored(key, record, index, raw), True

    def removed(self, key: str, index: int) -> None:  # noqa: ARG002
        """The worker's own commit."""
        self.stored, self.known = None, True

    def notify(self, keys: set[str]) -> None:
        """Nobody else waits for it."""

    def forget(self) -> None:
        """Read it again before the next plan, because nobody knows whether a write was made (R12)."""
        self.known = False

    async def read(self, context: Context, item: str) -> Run:
        """The run; without a record nothing has happened yet.

        Raises:
            RecordInvalid: it does not decode.
        """
        if not self.known:
            entry = await context.client.read(context.keys.record(RUNS.name, item), mode="consistent")
            self.stored = None if entry is None else codec.stored(Run, entry)
            self.known = True
        return Run() if self.stored is None else self.stored.record


async def all_runs(context: Context) -> dict[str, Stored[Run] | None]:
    """Every run, by its job; None: it does not decode, which the job's worker says."""
    page = await context.client.list(context.keys.tree(RUNS.name), mode="consistent")
    return {context.keys.last_part(raw.key): _decoded(Entry.of(raw)) for raw in page.items}


def _decoded(entry: Entry) -> Stored[Run] | None:
    try:
        return codec.stored(Run, entry)
    except RecordInvalid:
        return None


class Takeover:
    """The runs of jobs that a farm took over, read at once until their workers take them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._copies: dict[str, RunCopy] = {}

    async def read(self, items: Sequence[str]) -> None:
        """Read many runs by one request; the worker of a few, or of one that does not decode, reads it."""
        for item in items:
            self._copies.pop(item, None)
        if len(items) <= READ_ONE_BY_ONE:
            return
        found = await all_runs(self._context)
        for item in items:
            if (stored := found.get(item)) is not None or item not in found:
                self._copies[item] = RunCopy(stored, known=True)

    def take(self, item: str) -> RunCopy:
        """The run of a job, which is read when it is needed if it was not."""
        return self._copies.pop(item, None) or RunCopy()
