"""Replication controllers: the record, and its repository (p2 ``pkg/rc/fields``, ``rcstore``).

The desired count is required when a record is decoded: its absence is an error while 0 is legal, so
that no slip of a schema can ever scale a fleet to nothing. A record that does not decode is reported
beside the good ones and never poisons a listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from store import codec, operations
from store.entry import Entry, Stored
from store.errors import Ambiguous, NotFound, RecordInvalid
from store.keys import Keys, is_sentinel
from store.operations import Operation

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

KIND = "rcs"

Strategy = Literal["static", "dynamic"]
OnLost = Literal["replace", "wait"]


class ReplicationController(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Keep ``replicas_desired`` copies of one manifest on nodes that match ``node_selector``.

    ``labels`` are the RC's own, for farms that select; ``pod_labels`` go onto its pods.
    ``managed_by`` names the rollout that owns the membership (R14), ``needs`` the features that a
    farm must know to claim it (R11). ``on_lost``: what happens to pods on a lost node (R21).
    ``unhealthy_after``: seconds until a pod that stays unhealthy is replaced (0: never), and
    ``transfer_timeout``: seconds that a pod on its new node has to become healthy.
    ``deleting`` stands from the moment that a cascading delete was asked for; the count is 0 then.
    """

    id: str
    name: str
    manifest: Annotated[str, msgspec.Meta(min_length=1)]
    replicas_desired: Annotated[int, msgspec.Meta(ge=0)]
    pod_id: str = ""
    node_selector: str = ""
    labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    disabled: bool = False
    strategy: Strategy = "static"
    replicas_per_node: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_unavailable: Annotated[int, msgspec.Meta(ge=1)] = 1
    on_lost: OnLost = "replace"
    managed_by: str = ""
    needs: list[str] = []
    deleting: bool = False
    unhealthy_after: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    transfer_timeout: Annotated[float, msgspec.Meta(gt=0)] = 300.0


class Listing(msgspec.Struct, frozen=True):
    """All RCs that decode, by name, and what is wrong with the others."""

    items: list[Stored[ReplicationController]]
    broken: list[RecordInvalid]


def decode(keys: Keys, entry: Entry) -> Stored[ReplicationController]:
    """One RC from its entry.

    Raises:
        RecordInvalid: it does not decode, or bears another id than its key.
    """
    stored = codec.stored(ReplicationController, entry)
    if stored.record.id != keys.last_part(entry.key):
        raise RecordInvalid(
            f"{entry.key}: id: found {stored.record.id!r}, expected the last part of the key", key=entry.key
        )
    return stored


class ReplicationControllerStore:
    """Reads RCs and builds the operations that change them (p2 ``rcstore``).

    Errors of the client pass through: ``StoreUnavailable``, ``AccessDenied``, ``UnexpectedAnswer``.
    """

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def get(self, rc_id: str) -> Stored[ReplicationController]:
        """One RC by its whole id.

        Raises:
            NotFound: there is none.
            RecordInvalid: its record does not decode.
        """
        entry = await self._client.read(self._keys.record(KIND, rc_id))
        if entry is None:
            raise NotFound(f"rc {rc_id!r} does not exist", kind=KIND, id=rc_id)
        return decode(self._keys, entry)

    async def named(self, name: str) -> tuple[Stored[ReplicationController] | None, int]:
        """The RC that bears a name, and the index of the name's key (0: the name is free).

        Raises:
            RecordInvalid: the name's key or the record does not decode.
        """
        entry = await self._client.read(self._keys.name(KIND, name))
        if entry is None:
            return None, 0
        rc_id = codec.decode(str, entry.value, entry.key)
        record = await self._client.read(self._keys.record(KIND, rc_id))
        return (None if record is None else decode(self._keys, record)), entry.modify_index

    async def find(self, text: str) -> Stored[ReplicationController]:
        """One RC by its name, its id, or the beginning of its id if that fits only one.

        Raises:
            NotFound: nothing fits.
            Ambiguous: the beginning fits several; ``fields["ids"]`` lists some.
            RecordInvalid: its record does not decode.
        """
        if text and "/" not in text:
            stored, _ = await self.named(text)
            if stored is not None:
                return stored
            page = await self._client.keys(self._keys.record(KIND, text))
            ids = [self._keys.last_part(key) for key in page.items if not is_sentinel(key)]
            if text in ids or len(ids) == 1:
                return await self.get(text if text in ids else ids[0])
            if ids:
                shown = ", ".join(ids[:5])
                raise Ambiguous(f"rc {text!r} fits {len(ids)} ids: {shown}", kind=KIND, ids=ids[:5])
        raise NotFound(f"rc {text!r} does not exist", kind=KIND, id=text)

    async def list(self) -> Listing:
        """All RCs, sorted by name; records that do not decode are reported, not raised."""
        page = await self._client.list(self._keys.tree(KIND))
        listing = Listing([], [])
        for raw in page.items:
            if is_sentinel(raw.key):
                continue
            try:
                listing.items.append(decode(self._keys, Entry.of(raw)))
            except RecordInvalid as error:
                listing.broken.append(error)
        listing.items.sort(key=lambda stored: (stored.record.name, stored.record.id))
        return listing

    async def names(self) -> tuple[str, ...]:
        """All names in use, for completion; reads no record."""
        prefix = self._keys.name(KIND, "")
        page = await self._client.keys(prefix)
        return tuple(key[len(prefix) :] for key in page.items)

    def create(self, rc: ReplicationController, *, name_index: int = 0) -> tuple[Operation, ...]:
        """Create the record and take its name; both belong into one transaction.

        ``name_index`` above 0 takes over a name whose record does not exist any more.
        """
        return (
            operations.create(self._keys.record(KIND, rc.id), codec.encode(rc)),
            operations.cas(self._keys.name(KIND, rc.name), codec.encode(rc.id), name_index),
        )

    def replace(self, stored: Stored[ReplicationController], rc: ReplicationController) -> Operation:
        """Replace a record if nobody changed it since; fields that are not known here survive."""
        return operations.cas(stored.key, codec.rewrite(rc, stored.raw), stored.index, flags=stored.flags)

    def delete(self, stored: Stored[ReplicationController]) -> tuple[Operation, ...]:
        """Delete a record at its index with its name, status and work.

        Safe only for a count of 0 whose pods were listed, empty, *after* the record was read: every
        transaction that adds pods carries the index of a record with a higher count (R12).
        """
        rc = stored.record
        return (
            operations.delete_cas(stored.key, stored.index),
            operations.delete(self._keys.name(KIND, rc.name)),
            operations.delete(self._keys.status(KIND, rc.id)),
            operations.delete(self._keys.work(KIND, rc.id)),
            operations.delete(self._keys.sentinel(self._keys.pods(rc.id))),
        )
