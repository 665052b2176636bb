"""Records that own pods, with what their owners last reported and the farms that own them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from farmd.overview.members import farms, why_unowned
from store import daemonsets as daemonset_records
from store import rcs as controller_records
from store.daemonsets import DaemonSet, DaemonSetStore
from store.entry import Stored
from store.keys import Keys
from store.locks import Holder
from store.named import NamedRecords
from store.rcs import ReplicationController, ReplicationControllerStore
from store.status import Status, StatusStore

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

OUTDATED = "the status is outdated: it speaks of the record before its last change"

T = TypeVar("T", ReplicationController, DaemonSet)


class _Row(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One record, its index, what its owner last reported, the farm that owns it, and who locked it.

    ``locked`` is the value of its mutation lock, read for one record only, never for lists. ``unowned`` says
    why no farm works on it.
    """

    record: T
    index: int
    status: Status | None = None
    owner: str = ""
    locked: str = ""
    unowned: str = ""

    @property
    def reported(self) -> bool:
        """Whether the report speaks of the record as it is now."""
        if self.status is None:
            return False
        if self.status.record:
            return self.status.record == self.index
        # An older farm wrote it; a controller's count tells at least something.
        return isinstance(self.record, DaemonSet) or self.status.desired == self.record.replicas_desired

    @property
    def state(self) -> str:
        """One word: what is happening, or why nothing is."""
        if self.record.deleting:
            return "deleting"
        if not self.owner:
            return "unowned"
        if self.record.disabled:
            return "disabled"
        return self.status.state if self.status is not None and self.reported else "pending"

    @property
    def reason(self) -> str:
        """Why nobody works on it, what the owner says of it, or that its status is outdated."""
        if self.unowned or self.status is None:
            return self.unowned
        return self.status.reason if self.reported else OUTDATED


class ControllerRow(_Row[ReplicationController], frozen=True, kw_only=True):
    """One controller."""


class DaemonSetRow(_Row[DaemonSet], frozen=True, kw_only=True):
    """One daemon set."""


class Controllers(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[ControllerRow]
    broken: list[str]


class DaemonSets(msgspec.Struct, frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[DaemonSetRow]
    broken: list[str]


Row = TypeVar("Row", ControllerRow, DaemonSetRow)


async def controllers(client: ConsulClient, keys: Keys) -> Controllers:
    """All controllers."""
    records = ReplicationControllerStore(client, keys)
    return Controllers(*await _all(client, keys, controller_records.KIND, records, ControllerRow))


async def controller(client: ConsulClient, keys: Keys, target: str) -> ControllerRow:
    """One controller by name, id or beginning of an id.

    Raises:
        NotFound: there is none. Ambiguous: several fit. RecordInvalid: it does not decode.
    """
    stored = await ReplicationControllerStore(client, keys).find(target)
    return await _one(client, keys, controller_records.KIND, stored, ControllerRow)


async def daemonsets(client: ConsulClient, keys: Keys) -> DaemonSets:
    """All daemon sets."""
    records = DaemonSetStore(client, keys)
    return DaemonSets(*await _all(client, keys, daemonset_records.KIND, records, DaemonSetRow))


async def daemonset(client: ConsulClient, keys: Keys, target: str) -> DaemonSetRow:
    """One daemon set by name, id or beginning of an id.

    Raises:
        NotFound: there is none. Ambiguous: several fit. RecordInvalid: it does not decode.
    """
    stored = await DaemonSetStore(client, keys).find(target)
    return await _one(client, keys, daemonset_records.KIND, stored, DaemonSetRow)


async def _all(
    client: ConsulClient, keys: Keys, kind: str, records: NamedRecords[T], row: type[Row]
) -> tuple[list[Row], list[str]]:
    listing = await records.list()
    statuses = await StatusStore(client, keys, kind).list()
    owners = await holders(client, keys, kind)
    members = await farms(client, keys)
    rows = [
        row(
            record=stored.record,  # type: ignore[arg-type]
            index=stored.index,
            status=statuses.get(stored.record.id),
            owner=(owner := owners.get(stored.record.id, "")),
            unowned="" if owner else why_unowned(kind, stored.record, members),
        )
        for stored in listing.items
    ]
    return rows, [error.message for error in listing.broken]


async def _one(client: ConsulClient, keys: Keys, kind: str, stored: Stored[T], row: type[Row]) -> Row:
    item = stored.record.id
    lock = await client.read(keys.lock(kind, item))
    mutation = await client.read(keys.mutation_lock(kind, item))
    return row(
        record=stored.record,  # type: ignore[arg-type]
        index=stored.index,
        status=await StatusStore(client, keys, kind).get(item),
        owner="" if lock is None else Holder.parse(lock.value).id,
        unowned="" if lock is not None else why_unowned(kind, stored.record, await farms(client, keys)),
        locked="" if mutation is None else mutation.value.decode("utf-8", "replace"),
    )


async def holders(client: ConsulClient, keys: Keys, kind: str) -> dict[str, str]:
    """Which farm holds which item of a kind of work; all kinds for ``""``, with keys ``<kind>/<id>``."""
    page = await client.list(keys.lock(kind, "") if kind else keys.tree("locks"))
    found = {}
    for raw in page.items:
        of, item, mutation = keys.lock_parts(raw.key)
        if of and not mutation:
            found[item if kind else f"{of}/{item}"] = Holder.parse(raw.decoded()).id
    return found
