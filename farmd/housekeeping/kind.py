"""House-keeping as a kind of work of the claim engine: two items that always exist, one a chore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from farmd.farm.model import Item
from farmd.housekeeping.audit import AuditPruning
from farmd.housekeeping.manifests import ManifestCollection
from farmd.housekeeping.pen import Pen
from farmd.housekeeping.tools import Tools
from farmd.housekeeping.worker import KIND, Chore, Housekeeper
from store.locks import Claim
from store.sessions import Session

CHORES: dict[str, Callable[[Tools, Pen], Chore]] = {
    "manifests": ManifestCollection,
    "audit": AuditPruning,
}


class Housekeeping:
    """The kind ``housekeeping``. Its items have no records and no labels: farms with a selector skip it."""

    name = KIND

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._blocked: set[str] = set()
        self._items = {chore: Item(chore, 0) for chore in CHORES}

    def items(self) -> Mapping[str, Item]:
        """The chores."""
        return self._items

    def trusted(self) -> bool:
        """They are always the same."""
        return True

    def subscribe(self, changed: Callable[[set[str], bool], None]) -> None:
        """Nothing of them ever changes."""

    async def barrier(self, items: Sequence[str]) -> None:
        """Chores read everything themselves, consistently, after their claim (R15)."""

    def blocked(self) -> int:
        """How many chores here do not get on."""
        return len(self._blocked)

    def worker(self, claim: Claim, session: Session) -> Housekeeper:
        """A worker for one chore."""
        pen = Pen(self._tools.client, claim, session)
        chore = CHORES[claim.item](self._tools, pen)
        return Housekeeper(claim, pen, chore, self._tools, self._blocked)
