"""Audit: one record a transaction, in the change's own transaction (p2 ``pkg/audit``).

Records hold counts before and after and the difference only. Keys sort by time within their UTC
hour, so pruning is one ``delete-tree`` an hour (R25).
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from store import codec, operations
from store.keys import Keys
from store.ports import Clock, Ids


class Audit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who did what to which item and why; pods are written ``<node>/<instance>``.

    ``before`` and ``after`` hold the fields that changed.
    """

    at: float
    actor: str
    action: str
    kind: str
    id: str
    name: str = ""
    reason: str = ""
    before: dict[str, int | str | bool] = {}
    after: dict[str, int | str | bool] = {}
    placed: list[str] = []
    removed: list[str] = []
    relabelled: list[str] = []
    manifest: str = ""


class AuditLogStore:
    """Builds audit operations with time-ordered keys; reading is ``list_hours`` in the client's hands."""

    def __init__(self, keys: Keys, clock: Clock, ids: Ids) -> None:
        self._keys = keys
        self._clock = clock
        self._ids = ids

    def now(self) -> float:
        """The time that records of this moment carry."""
        return self._clock.now()

    def operation(self, record: Audit) -> operations.Operation:
        """The operation that writes one record; it belongs into the change's own transaction."""
        hour = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%dT%H")
        record_id = f"{int(record.at * 1000):011x}-{self._ids.new()[:8]}"
        return operations.create(self._keys.audit(hour, record_id), codec.encode(record))
