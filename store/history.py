"""History: rollouts that are over, ``history/<rc name>/<rollout id>``, the newest ten of each controller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from store import codec, operations
from store.entry import Entry
from store.errors import RecordInvalid
from store.keys import Keys, is_sentinel
from store.operations import Operation
from store.ports import KeyReader
from store.rcs import ReplicationController
from store.rollouts import Ending
from store.times import Time

KEPT = 10


class Ended(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rollout that is over, ``history/<rc name>/<rollout id>``, with the old controller as it was.

    ``new`` is the id of the new controller, ``started_from`` the count of the old one when the rollout began;
    earlier versions tell neither.
    """

    id: str
    name: str
    outcome: Ending
    from_manifest: str
    to_manifest: str
    old: ReplicationController
    replicas: int
    new: str = ""
    started_from: int = 0
    reason: str = ""
    by: str = ""
    began: Time = 0.0
    ended: Time = 0.0


class History:
    """What is over, by the controller's name."""

    def __init__(self, client: KeyReader, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read(self, name: str, broken: list[str] | None = None) -> list[tuple[Ended, Entry]]:
        """The newest first; what does not decode is left out, with one line each in ``broken``."""
        page = await self._client.list(self._keys.history(name, ""), mode="consistent")
        found = []
        for entry in (Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)):
            try:
                found.append((codec.decode(Ended, entry.value, entry.key), entry))
            except RecordInvalid as error:
                if broken is not None:
                    broken.append(error.message)
        return sorted(found, key=lambda each: (-each[0].ended, each[0].id))

    def add(self, ended: Ended, known: Sequence[tuple[Ended, Entry]]) -> list[Operation]:
        """The operations that remember one more than is known, and forget the oldest."""
        oldest = [operations.delete_cas(e.key, e.modify_index) for _, e in known[KEPT - 1 :]]
        return [
            operations.create(self._keys.history(ended.name, ended.id), codec.encode(ended)),
            *oldest[:KEPT],
        ]
