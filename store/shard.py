"""What a copy of a tree knows of one of its parked queries (R20, R23)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from store.entry import Page, RawEntry


@dataclass(slots=True)
class Shard:
    """One parked query: its prefix, the index of its last answer, and the state of the keys under it.

    ``removed`` holds this process's deletions until an answer is as new as they are. ``anew``: the known
    records are of before a restore; the next answer replaces them all, and all its keys count as changed.
    """

    prefix: str
    index: int = 0
    read: bool = False
    anew: bool = False
    doubt: str | None = None
    count: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    answered: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def lacks(self, page: Page[RawEntry], key: str, value: bytes) -> str | None:
        """Why an answer is no proof of absence; None if it has the sentinel with the cluster's id."""
        for raw in page.items:
            if raw.key == key:
                return None if raw.decoded() == value else "its sentinel bears another cluster's id"
        return "the answer lacks the sentinel"

    def accepted(self, index: int) -> None:
        """An answer with this index was applied."""
        self.index = index
        self.read = True
        self.anew = False
        self.doubt = None
        self.removed = {key: since for key, since in self.removed.items() if since > index}

    def forgotten(self) -> Shard:
        """The same query, none of whose answers counts any more."""
        return Shard(self.prefix, anew=True, doubt=self.doubt, count=self.count, answered=self.answered)
