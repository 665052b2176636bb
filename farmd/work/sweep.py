"""Sweeps statuses slowly, because no watch covers them: finds those that somebody deleted or changed (R25).

It passes the stored status to the item's worker, which writes its own again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import StoreError
from store.keys import Keys
from store.ports import Clock

log = structlog.get_logger()

# All statuses of a kind are read once in this time, in parts by the first letter of the item.
SWEEP_SECONDS = 300.0
SWEEP_PARTS = 16


class Shown(Protocol):
    """The worker of an item."""

    def look_at_status(self, entry: Entry | None) -> None:
        """What stands in the store; None: nothing does."""


@dataclass(eq=False)
class StatusSweep:
    """The statuses of the items of one kind that have a worker in this farm."""

    client: ConsulClient
    keys: Keys
    kind: str
    _shown: dict[str, Shown] = field(default_factory=dict, init=False)

    def attach(self, item: str, worker: Shown) -> None:
        """From now on show the item's worker its stored status, or None."""
        self._shown[item] = worker

    def detach(self, item: str) -> None:
        self._shown.pop(item, None)

    async def run(self, clock: Clock) -> None:
        """Read one part after the other, for ever."""
        for part in itertools.cycle(range(SWEEP_PARTS)):
            await clock.sleep(SWEEP_SECONDS / SWEEP_PARTS)
            firsts = {item[0] for item in self._shown if ord(item[0]) % SWEEP_PARTS == part}
            try:
                for first in sorted(firsts):
                    await self._look(first)
            except StoreError as error:
                log.debug("status.not_swept", kind=self.kind, code=error.code)

    async def _look(self, first: str) -> None:
        page = await self.client.list(self.keys.status(self.kind, first))
        standing = {self.keys.last_part(raw.key): raw for raw in page.items}
        for item, worker in list(self._shown.items()):
            if item.startswith(first):
                raw = standing.get(item)
                worker.look_at_status(None if raw is None else Entry.of(raw))
