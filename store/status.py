"""Status: what an item's owner last did, for people. Written on change only; no decision reads it."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from store import codec, operations
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import Keys
from store.operations import Operation
from store.ports import KeyReader


class ItemStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the status of every kind's items says; ``blocked`` always comes with a reason.

    ``record`` is the ModifyIndex of the record that it speaks of; 0 in statuses of older farms, which did not
    say it. ``alerts`` are the incident keys of the alerts that are open for the item: whoever takes it over
    ends them, and fires none of them again.
    """

    state: str
    reason: str = ""
    farm: str = ""
    since: float = 0.0
    record: int = 0
    alerts: tuple[str, ...] = ()


class Status(ItemStatus, frozen=True, omit_defaults=True, kw_only=True):
    """The status of what owns pods.

    ``placed`` counts pods that exist, ``healthy`` those that pass on the right manifest,
    ``outdated`` those that still run another one.
    """

    state: Literal["converged", "progressing", "blocked", "frozen", "disabled"]
    desired: int = 0
    placed: int = 0
    healthy: int = 0
    outdated: int = 0


S = TypeVar("S", bound=ItemStatus)


def open_alerts(entry: Entry | None) -> tuple[str, ...]:
    """Incident keys of the alerts that a stored status calls open; none where it does not decode."""
    try:
        return () if entry is None else codec.decode(ItemStatus, entry.value, entry.key).alerts
    except RecordInvalid:
        return ()


class StatusStore(Generic[S]):
    """Reads what the owners of one kind's items last did; it decides nothing."""

    def __init__(self, client: KeyReader, keys: Keys, kind: str, model: type[S]) -> None:
        self._client = client
        self._keys = keys
        self._kind = kind
        self._model = model

    async def get(self, item_id: str) -> S | None:
        """The status of one item; none until an owner wrote one that decodes.

        It is for people only, who can go without until its owner writes it anew.
        """
        entry = await self._client.read(self._keys.status(self._kind, item_id))
        try:
            return None if entry is None else codec.decode(self._model, entry.value, entry.key)
        except RecordInvalid:
            return None  # the doctor reports it

    async def list(self) -> dict[str, S]:
        """Every status of the kind that decodes, by item id."""
        page = await self._client.list(self._keys.status(self._kind, ""))
        found: dict[str, S] = {}
        for raw in page.items:
            try:
                found[self._keys.last_part(raw.key)] = codec.decode(self._model, raw.decoded(), raw.key)
            except RecordInvalid:
                continue  # the doctor reports it
        return found

    def write(self, item_id: str, status: S) -> Operation:
        """The operation with which an item's owner replaces its status."""
        return operations.put(self._keys.status(self._kind, item_id), codec.encode(status))
