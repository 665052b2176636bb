"""Carries out the changes of one revision (KubeVela ``AppManifestsDispatcher``).

A revision is dispatched step by step while nothing is collected (``start_and_skip_gc``), and in the end what
former revisions left is (``end_and_gc``, then a dispatch of nothing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from farmd.dispatch.collector import Carry, GarbageCollector
from farmd.dispatch.model import Act, ApplicationRevision, Ref
from store.apps import Entry

Revision = Mapping[Ref, Entry]


class AppManifestsDispatcher:
    """Dispatches changes of ``revision``, which wants ``entries``; ``carry`` does them."""

    def __init__(
        self,
        revision: ApplicationRevision,
        entries: Sequence[Entry],
        carry: Carry,
        collector: GarbageCollector,
    ) -> None:
        self.revision = revision
        self._entries, self._carry, self._collector = entries, carry, collector
        self._previous: Revision | None = None
        self._skip_gc = False

    def start_and_skip_gc(self, previous: Revision | None) -> Self:
        """From now on collect nothing of what was there before; None: as it is."""
        return self._since(previous, skip_gc=True)

    def end_and_gc(self, previous: Revision | None) -> Self:
        """From now on collect what was there before and is not wanted, after each dispatch; None: as it
        is."""
        return self._since(previous, skip_gc=False)

    def _since(self, previous: Revision | None, *, skip_gc: bool) -> Self:
        if previous is not None:
            self._previous, self._skip_gc = dict(previous), skip_gc
        return self

    async def dispatch(self, acts: Sequence[Act]) -> Mapping[Ref, str]:
        """Do these changes, then collect; the objects that must wait, with the reasons.

        Raises:
            StoreError: what was done is unknown; nothing was collected.
        """
        waiting = dict(await self._carry(acts)) if acts else {}
        if self._previous is None or self._skip_gc or waiting:
            return waiting
        return await self._collector.garbage_collect(self._previous, self._entries)
