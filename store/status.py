"""Status: the state of an item, for people. It is written only on change. The one decision that reads it is
to begin nothing again: a status says that an item began whose state was lost.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from store import codec, operations
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import Keys
from store.named import records
from store.operations import Operation
from store.ports import KeyReader
from store.times import Time


class ItemStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The fields of every kind's statuses; the state ``blocked`` always has a reason.

    ``name`` is what people call the item, where no record says it; empty in statuses of older farms.
    ``record`` is the ModifyIndex of the record that the status is about; 0 in statuses of older farms.
    ``alerts`` are the incident keys of the item's open alerts: a farm that takes the item over ends them and
    does not fire them again.
    """

    state: str
    reason: str = ""
    name: str = ""
    farm: str = ""
    since: Time = 0.0
    record: int = 0
    alerts: tuple[str, ...] = ()

    @property
    def underway(self) -> bool:
        """Whether its worker keeps a state of how far the item is; without one it would begin again."""
        return False

    @property
    def progress(self) -> str:
        """The progress of an item that ends by itself; empty for others."""
        return ""


class Status(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of a record that owns pods.

    ``placed`` counts the pods that exist, ``healthy`` those that run the record's manifest and pass their
    check, ``outdated`` those that still run another manifest or wait for a restart, ``serving`` those that
    pass their check, outdated or not; 0 in statuses of older farms.
    """

    state: Literal["converged", "progressing", "blocked", "frozen", "disabled"]
    desired: int = 0
    placed: int = 0
    healthy: int = 0
    outdated: int = 0
    serving: int = 0


S = TypeVar("S", bound=ItemStatus)


def open_alerts(entry: Entry | None) -> tuple[str, ...]:
    """Incident keys of the open alerts in a stored status; none if it does not decode."""
    try:
        return () if entry is None else codec.decode(ItemStatus, entry.value, entry.key).alerts
    except RecordInvalid:
        return ()


class StatusStore(Generic[S]):
    """Reads the statuses of one kind's items, and builds the operation that writes one."""

    def __init__(self, client: KeyReader, keys: Keys, kind: str, model: type[S]) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind
        self._model = model

    async def get(self, item_id: str) -> S | None:
        """The status of one item; None if there is none that decodes."""
        entry = await self._client.read(self._keys.status(self._kind, item_id))
        try:
            return None if entry is None else codec.decode(self._model, entry.value, entry.key)
        except RecordInvalid:
            return None  # the doctor reports it

    async def list(self) -> dict[str, S]:
        """Every status of the kind that decodes, by item id."""
        # The doctor reports the others.
        found = await records(self._client, self._keys.status(self._kind, ""), self._model)
        return {item: stored.record for item, stored in found.named.items()}

    def write(self, item_id: str, status: S) -> Operation:
        """The operation that replaces an item's status."""
        return operations.put(self._keys.status(self._kind, item_id), codec.encode(status))
