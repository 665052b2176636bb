"""A kind of work, as the claim engine sees it: the seam that a new kind implements.

To add one: list its items, build a worker for a claim, and say what must be fresh before a worker may
plan. ``farmd/replication/kind.py`` is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from farmd.farm.model import Item
from farmd.runtime.wake import Wake
from store.locks import Claim
from store.sessions import Session


class Worker(Protocol):
    """Works on one item until it is cancelled. An exception counts as a crash (R10)."""

    async def run(self) -> None:
        """The loop."""

    async def gone(self) -> object:
        """The item does not exist any more: end what people were told of it. Called after ``run`` ended."""


class Kind(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """The family of its records and locks, such as ``rcs``."""

    def items(self) -> Mapping[str, Item]:
        """All items of this kind, by id, from a fresh cache."""

    def trusted(self) -> bool:
        """Whether ``items`` may be taken for complete right now; otherwise nothing is released (R20)."""

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the items whose records changed, and whether that can matter to claiming.

        Coming, going, other labels or needs matter; a changed count does not, and costs no round.
        """

    async def barrier(self, items: Sequence[str]) -> None:
        """Return once what workers of these items plan from was read after this call (R15)."""

    def blocked(self) -> int:
        """How many of its workers here are blocked, with a reason in their status."""

    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        """A worker for a claim; built only after ``barrier``. ``wake`` is set when the record changes."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs beside the workers for as long as the farm does."""
