"""The open incidents that farms have reported, whichever farm did.

They are stored where the next owner finds them: in the statuses of items, in freezes, and in the pins of
clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from farmd.failsafe.alerts import incident_key
from store import families
from store.consul.client import ConsulClient
from store.errors import RecordInvalid
from store.failsafe import FailsafeStore
from store.farms import PinnedCluster
from store.keys import Keys
from store.named import records
from store.status import ItemStatus
from store.times import Time

# What is found wrong with items that lie outside of Consul, in the words of the doctor.


class Fault(NamedTuple):
    """``code`` is stable, ``object`` is as people write it, ``fix`` says what to do."""

    code: str
    object: str
    explanation: str
    fix: str


@dataclass(frozen=True, slots=True)
class Examined:
    """Faults in the order in which they are to be read, and plain facts by name."""

    faults: Sequence[Fault] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One open incident; ``kind`` and ``item`` are what it is about, ``name`` what people call that."""

    key: str
    kind: str
    item: str
    name: str = ""
    state: str = ""
    reason: str = ""
    farm: str = ""
    since: Time = 0.0


async def incidents(client: ConsulClient, keys: Keys) -> list[Incident]:
    """All of them, by their keys. A record that does not decode hides none but its own."""
    found = [
        *await _of_items(client, keys),
        *await _of_freezes(client, keys),
        *await _of_clusters(client, keys),
    ]
    return sorted(found, key=lambda each: (each.key, each.kind, each.item))


async def _of_items(client: ConsulClient, keys: Keys) -> list[Incident]:
    found, tree = [], keys.tree("status")
    for stored in (await records(client, tree, ItemStatus)).items:
        status = stored.record
        if not status.alerts:
            continue
        kind, _, item = stored.key.removeprefix(tree).partition("/")
        name = await _name(client, keys, kind, item)
        found += [
            Incident(
                key=key,
                kind=kind,
                item=item,
                name=name,
                state=status.state,
                reason=status.reason,
                farm=status.farm,
                since=status.since,
            )
            for key in status.alerts
        ]
    return found


async def _name(client: ConsulClient, keys: Keys, kind: str, item: str) -> str:
    """What people call an item; its id, where they do not name it or it is gone."""
    entry = await client.read(keys.record(kind, item)) if families.named(kind) else None
    try:
        return item if entry is None else str(families.decode(keys, kind, entry).name)
    except RecordInvalid:
        return item


async def _of_freezes(client: ConsulClient, keys: Keys) -> list[Incident]:
    """One for each evidence, however many kinds of work it freezes."""
    found: dict[str, Incident] = {}
    for kind, stored in sorted((await FailsafeStore(client, keys).list()).items()):
        record, key = stored.record, incident_key(stored.record.evidence)
        kinds = f"{found[key].item}, {kind}" if key in found else kind
        found[key] = Incident(
            key=key,
            kind="failsafe",
            item=kinds,
            name=kinds,
            state="acknowledged" if record.acknowledgement is not None else "frozen",
            reason=record.evidence,
            farm=record.by.partition("/")[2],
            since=record.since,
        )
    return list(found.values())


async def _of_clusters(client: ConsulClient, keys: Keys) -> list[Incident]:
    pinned = (await records(client, f"{keys.tree('meta')}kubernetes/", PinnedCluster)).named
    return [
        Incident(key=key, kind="kubernetes", item=name, name=name)
        for name, stored in pinned.items()
        for key in stored.record.alerts
    ]
