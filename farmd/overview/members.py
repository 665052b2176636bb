"""Farms that are present, and why no farm works on an item, as far as presence and records show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farmd import kinds
from store.errors import InputInvalid
from store.farms import Member
from store.keys import Keys
from store.named import records
from store.selectors import parse

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

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
        return f"no farm that is alive claims {kind}: farm.kinds"
    fitting = [member for member in claiming if not kinds.selectable(kind) or _selects(member, record)]
    if not fitting:
        return "its labels fit the selector of no farm that is alive"
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
