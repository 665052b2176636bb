"""History: rollouts that are over, ``history/<rc name>/<rollout id>``, the newest ten of each controller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from store import codec, operations
from store.entry import Stored
from store.keys import Keys
from store.listing import Listing, records
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

    async def read(self, name: str) -> Listing[Ended]:
        """The newest first, and the errors of those that do not decode."""
        found = await records(self._client, self._keys.history(name, ""), Ended, "consistent")
        newest = sorted(found.items, key=lambda each: (-each.record.ended, each.record.id))
        return Listing(newest, found.broken)

    def add(self, ended: Ended, known: Sequence[Stored[Ended]]) -> list[Operation]:
        """The operations that remember one more than is known, and forget the oldest."""
        oldest = [operations.delete_cas(each.key, each.index) for each in known[KEPT - 1 :]]
        return [
            operations.create(self._keys.history(ended.name, ended.id), codec.encode(ended)),
            *oldest[:KEPT],
        ]
