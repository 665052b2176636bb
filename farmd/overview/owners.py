"""Records that own pods, with their last statuses and the farms that own them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from farmd import kinds
from farmd.kinds import noun, title
from store import families
from store.entry import Stored
from store.errors import InputInvalid, NotFound, RecordInvalid
from store.families import FAMILIES, Family, named
from store.farms import Member
from store.keys import Keys
from store.locks import Holder
from store.named import Named, NamedRecords, records
from store.selectors import parse
from store.status import StatusStore

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

# Farms that are present, and why no farm works on an item, as far as presence and records show.

NOT_YET = "no farm has claimed it yet"
NOT_READY = "no farm that may claim it has read everything yet: farmctl doctor"


async def farms(client: ConsulClient, keys: Keys) -> list[Member]:
    """All farms that are present, by id, without those whose presence does not decode."""
    # A presence that does not decode is of a newer version: that farm cannot be described.
    found = await records(client, keys.tree("farms"), Member)
    return sorted((stored.record for stored in found.items), key=lambda member: member.id)


def why_unowned(kind: str, record: object, members: Sequence[Member]) -> str:
    """Why no farm works on an item, in one line; ``NOT_YET`` or ``NOT_READY`` if a farm may claim it."""
    if not members:
        return "no farm is alive"
    claiming = [member for member in members if kind in member.kinds]
    if not claiming:
        return f"no live farm claims {kind}: farm.kinds"
    fitting = [member for member in claiming if not kinds.selectable(kind) or _selects(member, record)]
    if not fitting:
        return "its labels match the selector of no live farm"
    needs: list[str] = getattr(record, "needs", [])
    able = [member for member in fitting if set(needs) <= set(member.features)]
    if able and all(member.starting for member in able):
        return NOT_READY
    if able:
        return NOT_YET
    known = {feature for member in fitting for feature in member.features}
    missing = [feature for feature in needs if feature not in known] or needs
    return f"it needs {', '.join(missing)}, which no farm that may claim it has: farm.features"


def _selects(member: Member, record: object) -> bool:
    try:
        return parse(member.selector).matches(getattr(record, "labels", {}))
    except InputInvalid:
        return True  # a newer version wrote it, and knows what it means


OUTDATED = "the status is outdated: it describes the record before its last change"
DELETING = "it was marked for deletion, and its farm removes it"

T = TypeVar("T", bound=Named)


class Row(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One record, its index, its last status, the farm that owns it, and the holder of its mutation lock.

    ``status`` has the family's own type. ``locked`` is the value of the mutation lock, read for single
    records only. ``unowned`` says why no farm works on it, ``managed`` how far the item is that manages it,
    ``unmanaged`` why that one does nothing; ``whole`` is what a single record is a part of. ``passive``:
    nobody works on such records.
    """

    record: T
    index: int
    status: Any = None
    owner: str = ""
    locked: str = ""
    unowned: str = ""
    managed: str = ""
    unmanaged: str = ""
    whole: str = ""
    passive: bool = False

    @property
    def reported(self) -> bool:
        """Whether the status describes the record as it is now."""
        if self.status is None:
            return False
        if self.status.record:
            return bool(self.status.record == self.index)
        # An older farm's status names no record; an equal desired count is a sign.
        count = getattr(self.record, "count", None)
        return count is None or bool(self.status.desired == count)

    @property
    def desired(self) -> int:
        """How many pods there should be: by the record, or by the owner's count; 0 until the owner
        counted.
        """
        count = getattr(self.record, "count", None)
        return int(getattr(self.status, "desired", 0) if count is None else count)

    @property
    def state(self) -> str:
        """One word for what is happening, or why nothing is."""
        if getattr(self.record, "deleting", False):
            return "deleting"
        if self.passive:
            return "disabled" if getattr(self.record, "disabled", False) else "ready"
        if not self.owner:
            return "unowned"
        if getattr(self.record, "disabled", False):
            return "disabled"
        if self.unmanaged:
            return "blocked"
        return str(self.status.state) if self.status is not None and self.reported else "pending"

    @property
    def reason(self) -> str:
        """Why no farm works on it, what manages it, the reason in the status, or that it is outdated."""
        if self.unowned or self.unmanaged:
            return self.unowned or self.unmanaged
        said = self._said()
        if self.managed:  # which writes the record at every step, so that a status is often behind
            return self.managed if said in {"", OUTDATED} else f"{self.managed}; {said}"
        return said

    @property
    def news(self) -> str:
        """The reason for whoever waits; each change makes the status outdated for a moment, which is none."""
        return "" if self.reason == OUTDATED else self.reason

    def _said(self) -> str:
        said = str(self.status.reason) if self.reported else ""
        if getattr(self.record, "deleting", False):
            return said or DELETING
        return OUTDATED if self.status is not None and not self.reported else said


class Rows(msgspec.Struct, Generic[T], frozen=True):
    """Rows by name, and one line for each record that does not decode."""

    rows: list[Row[T]]
    broken: list[str]


def records_of(client: ConsulClient, keys: Keys, family: Family[Any]) -> NamedRecords[Any]:
    """The records of one family that people name."""
    assert family.record is not None
    return NamedRecords(client, keys, family.name, family.record, noun(family.name))


async def titled(client: ConsulClient, keys: Keys, item: str) -> str:
    """An item as people write it, ``service/web`` for ``services/5e…``; as it is in a family that this
    version does not know.

    Raises:
        NotFound: there is none. RecordInvalid: it does not decode.
    """
    family, _, ident = item.partition("/")
    if family not in FAMILIES:
        return item
    if not named(family):
        if await client.read(keys.record(family, ident)) is None:
            raise NotFound(f"{title(family, ident)} does not exist", kind=family, id=ident)
        return title(family, ident)
    return title(family, (await records_of(client, keys, FAMILIES[family]).get(ident)).record.name)


async def owners(client: ConsulClient, keys: Keys) -> dict[str, Rows[Any]]:
    """All records that own pods, by family."""
    return {
        family.name: await rows(client, keys, records_of(client, keys, family))
        for family in families.owners()
    }


async def rows(client: ConsulClient, keys: Keys, records: NamedRecords[T]) -> Rows[T]:
    """All records of one family."""
    family = FAMILIES[records.family]
    listing = await records.list()
    statuses = await StatusStore(client, keys, family.name, family.status).list()
    owners = await holders(client, keys, family.name)
    members = await farms(client, keys)
    managers = await _managers(client, keys, [stored.record for stored in listing.items])
    found = [
        Row(
            record=stored.record,
            index=stored.index,
            status=statuses.get(stored.record.id),
            owner=(owner := owners.get(stored.record.id, "")),
            unowned="" if owner or family.passive else why_unowned(family.name, stored.record, members),
            passive=family.passive,
            **managers.get(getattr(stored.record, "managed_by", ""), {}),
        )
        for stored in listing.items
    ]
    return Rows(found, [error.message for error in listing.broken])


async def row(client: ConsulClient, keys: Keys, records: NamedRecords[T], target: str) -> Row[T]:
    """One record by name or id.

    Raises:
        NotFound: there is none. RecordInvalid: it does not decode.
    """
    return await row_of(client, keys, records.family, await records.find(target))


async def row_of(client: ConsulClient, keys: Keys, name: str, stored: Stored[T]) -> Row[T]:
    """A record of the family ``name``, with what is known of it besides."""
    family, item = FAMILIES[name], stored.record.id
    lock = await client.read(keys.lock(family.name, item))
    mutation = await client.read(keys.mutation_lock(family.name, item))
    members = [] if lock is not None else await farms(client, keys)
    managers = await _managers(client, keys, [stored.record])
    return Row(
        record=stored.record,
        index=stored.index,
        status=await StatusStore(client, keys, family.name, family.status).get(item),
        owner="" if lock is None else Holder.parse(lock.value).id,
        unowned="" if lock or family.passive else why_unowned(family.name, stored.record, members),
        passive=family.passive,
        **managers.get(getattr(stored.record, "managed_by", ""), {}),
        whole=await titled_or_not(client, keys, getattr(stored.record, "part_of", "")),
        locked="" if mutation is None else mutation.value.decode("utf-8", "replace"),
    )


async def titled_or_not(client: ConsulClient, keys: Keys, item: str) -> str:
    """An item as people write it, with what is wrong where that is not to be known; ``""`` for none."""
    if not item:
        return ""
    try:
        return await titled(client, keys, item)
    except (NotFound, RecordInvalid):
        family, _, ident = item.partition("/")
        return f"{title(family, ident)}, which does not exist or does not decode"


async def _managers(client: ConsulClient, keys: Keys, records: Sequence[Named]) -> dict[str, dict[str, str]]:
    """How far those items are that manage some of the records, or why they do nothing: fields of a ``Row``,
    by ``<family>/<id>``.
    """
    managed = {getattr(record, "managed_by", "").partition("/")[0] for record in records}
    found = {}
    for name in sorted(managed & FAMILIES.keys()):
        listing = await records_of(client, keys, family := FAMILIES[name]).list()
        statuses = await StatusStore(client, keys, name, family.status).list()
        for stored in listing.items:
            record, status = stored.record, statuses.get(stored.record.id)
            progress = f": {status.progress}" if status is not None and status.progress else ""
            found[f"{name}/{record.id}"] = {"managed": f"{title(name, record.name)}{progress}"}
        for error in listing.broken:
            item = f"{name}/{keys.last_part(error.fields['key'])}"
            found[item] = {"unmanaged": unmanaged(item, error)}
    return found


def unmanaged(item: str, error: RecordInvalid) -> str:
    """Why the item does nothing that manages a record: its own record does not decode."""
    return f"managed by {item}, which does not decode: {error.message}"


async def holders(client: ConsulClient, keys: Keys, kind: str) -> dict[str, str]:
    """The farms that hold the items of a kind of work; all kinds for ``""``, with keys ``<kind>/<id>``."""
    page = await client.list(keys.lock(kind, "") if kind else keys.tree("locks"))
    found = {}
    for raw in page.items:
        of, item, mutation = keys.lock_parts(raw.key)
        if of and not mutation:
            found[item if kind else f"{of}/{item}"] = Holder.parse(raw.decoded()).id
    return found
