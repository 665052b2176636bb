"""The one record of a job that no watch covers, ``runs/<id>``: read once a claim, then followed."""

from __future__ import annotations

from typing import Any

from farmd.work.context import Context
from store import codec
from store.entry import Stored
from store.families import RUNS
from store.jobs import Run


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
