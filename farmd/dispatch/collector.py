"""Collects what former revisions of an app left behind (KubeVela ``GCHandler``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from farmd.dispatch.model import Act, Ref, Snapshot
from farmd.dispatch.plan import falls_back
from farmd.dispatch.sweep import sweep
from store.apps import Entry

Carry = Callable[[Sequence[Act]], Awaitable[Mapping[Ref, str]]]


class GarbageCollector(Protocol):
    """Takes away what ``old`` revisions have and the ``new`` one has not."""

    async def garbage_collect(self, old: Mapping[Ref, Entry], new: Sequence[Entry]) -> Mapping[Ref, str]:
        """Collect; the objects that could not be changed, with the reasons."""


class GCHandler:
    """Collects by the marks of the objects as they stand in ``shot``; ``carry`` does what is decided."""

    def __init__(self, shot: Snapshot, carry: Carry) -> None:
        self._shot, self._carry = shot, carry

    async def garbage_collect(self, old: Mapping[Ref, Entry], new: Sequence[Entry]) -> Mapping[Ref, str]:
        """Collect what bears the app's mark; what something changes now stays until that is over.

        Raises:
            StoreError: what was done is unknown.
        """
        shot = dataclasses.replace(self._shot, former=old, wanted=tuple(new))
        found = sweep(shot, back=falls_back(shot.app, shot.state))
        return await self._carry(found.acts) if found.acts else {}
