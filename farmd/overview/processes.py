"""Farms that are present, how many items they hold, and the freezes in force."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from farmd.overview.members import farms
from farmd.overview.owners import holders
from store.failsafe import Failsafe, FailsafeStore, frozen
from store.farms import Member
from store.keys import Keys

if TYPE_CHECKING:
    from store.consul.client import ConsulClient


class FarmRow(msgspec.Struct, frozen=True, kw_only=True):
    """One farm, and how many items of each kind of work it holds."""

    member: Member
    items: dict[str, int] = {}


async def farm_rows(client: ConsulClient, keys: Keys) -> list[FarmRow]:
    """All farms that are present, by id, with how many items they hold."""
    members = await farms(client, keys)
    held: dict[str, Counter[str]] = {}
    for item, farm in (await holders(client, keys, "")).items():
        held.setdefault(farm, Counter())[item.partition("/")[0]] += 1
    return [
        FarmRow(member=member, items=dict(sorted(held.get(member.id, Counter()).items())))
        for member in members
    ]


async def freezes(client: ConsulClient, keys: Keys, now: float) -> dict[str, Failsafe]:
    """The freezes that are in force, by kind of work."""
    stored = await FailsafeStore(client, keys).list()
    return {kind: item.record for kind, item in stored.items() if frozen(item.record, now)}
