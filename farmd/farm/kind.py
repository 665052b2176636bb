"""A kind of work, as the claim engine sees it: the seam that a new kind implements.

A new kind lists its items, builds a worker for a claim, and says what must be fresh before a worker plans
(``farmd/work/kind.py`` is the base of all).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from farmd.farm.model import Item
from farmd.runtime.wake import Wake
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim, Locker
from store.ports import Recorder
from store.sessions import Session


class Worker(Protocol):
    """Works on one item until it is cancelled. An exception counts as a crash (R10)."""

    async def run(self) -> None:
        """The loop."""

    async def gone(self) -> object:
        """Resolve the item's alerts, because the item does not exist any more. Called after ``run`` ended."""

    def release(self) -> None:
        """Keep the item's alerts alive no more: the item's next worker does. Called after ``run`` ended."""


class Kind(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """The family of its records and locks, such as ``rcs``."""

    def items(self) -> Mapping[str, Item]:
        """All items of this kind, by id, from a fresh cache."""

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        """What takes the ownership locks of the items (R7)."""

    def trusted(self) -> bool:
        """Whether ``items`` is complete right now; otherwise nothing is released (R20)."""

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Call back with the items whose records changed, and with whether the change can affect claiming.

        A record that comes or goes, other labels and other needs affect claiming; a changed count does not
        and costs no round.
        """

    async def barrier(self, items: Sequence[str]) -> None:
        """Return once the input of these items' workers was read after this call (R15)."""

    def worker(self, claim: Claim, session: Session, wake: Wake) -> Worker:
        """A worker for a claim, built only after ``barrier``. ``wake`` is set when the record changes."""

    def publish(self, recorder: Recorder) -> None:
        """Write the metrics that only a scrape needs."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Tasks that run beside the workers for as long as the farm does."""
