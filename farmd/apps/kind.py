"""Apps as a kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farmd.apps.metrics import STATES
from farmd.apps.protocols import Elsewhere
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.managing import Phases
from farmd.work.named import NamedKind
from store.apps import KIND
from store.locks import Claim
from store.sessions import Session

if TYPE_CHECKING:
    from farmd.apps.reader import Index
    from farmd.apps.worker import AppWorker


class Apps(NamedKind):
    """The kind ``apps``."""

    name = KIND

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._phases = Phases(context.recorder, "farmd_apps", "state", STATES)
        self._elsewhere: Elsewhere | None = context.sections.get(KIND)
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """The records that apps name; made for the first app."""
        if self._index is None:
            from farmd.apps.reader import Index  # a farm without apps starts without it

            self._index = Index(self.context)
        return self._index

    async def barrier(self, items: Sequence[str]) -> None:
        """Read the apps, their states, and the records that they may name (R15)."""
        await super().barrier(items)
        caches = self.context.caches
        await caches.work.barrier()
        await caches.agents.barrier()
        for tree in self.index.trees:
            await tree.barrier()

    def worker(self, claim: Claim, session: Session, wake: Wake) -> AppWorker:
        """A worker for one app."""
        from farmd.apps.worker import AppWorker

        return AppWorker(self, claim, session, wake, self.index, self._elsewhere, self._phases)
