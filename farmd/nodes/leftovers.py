"""Reads the pods that are left on a node and why they stay, for drains and their previews.

An intent is a pod that the node must run, a reality one that it does run: a drain waits for both. An answer
without the node's own sentinel proves no absence (R20).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from farmd import kinds
from farmd.cache.caches import ManifestCache
from farmd.nodes.model import Leftover
from store import codec, families
from store.entry import RawEntry
from store.errors import NotFound, NotRegistered, RecordInvalid
from store.keys import Keys, is_sentinel
from store.named import Owner as Record

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

UNKNOWN_OWNER = "unknown"


class _Said(msgspec.Struct):
    """The fields that an intent and a reality share."""

    manifest: str = ""
    owner: str = UNKNOWN_OWNER


class _Reported(msgspec.Struct):
    """The field that the statuses of all owners share."""

    reason: str = ""


class SystemPods:
    """Tells which manifests are a system pod's."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._manifests = ManifestCache(client, keys)

    async def __call__(self, sha: str) -> bool:
        """Whether the manifest is a system pod's; one that cannot be read counts as an ordinary pod's."""
        try:
            return (await self._manifests.get(sha)).system
        except (NotFound, RecordInvalid):
            return False


async def read(
    client: ConsulClient, keys: Keys, node: str, system: SystemPods, *, running: bool = True
) -> tuple[Leftover, ...]:
    """The pods of a node by instance; ``running``: also pods that merely still run there.

    Raises:
        NotRegistered: the answer has no sentinel, and says nothing about what is not in it.
    """
    page = await client.list(keys.intents(node))
    sentinel = keys.sentinel(keys.intents(node))
    if not any(raw.key == sentinel for raw in page.items):
        raise NotRegistered(
            f"node {node!r}: {sentinel} is missing, so an empty answer proves nothing", node=node
        )
    seen = (await client.list(keys.realities(node))).items if running else []
    # The intents come last and win, because they know the owner better.
    said = {keys.last_part(raw.key): _said(raw) for raw in (*_records(seen), *_records(page.items))}
    return tuple(
        [Leftover(instance, one.owner, await system(one.manifest)) for instance, one in sorted(said.items())]
    )


def _records(items: Iterable[RawEntry]) -> Iterable[RawEntry]:
    return (raw for raw in items if not is_sentinel(raw.key))


def _said(raw: RawEntry) -> _Said:
    try:
        return codec.decode(_Said, raw.decoded(), raw.key)
    except RecordInvalid:
        return _Said()  # it is there all the same, and must not count as gone


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of pods: ``kind`` and ``title`` (``rc/web``), and why its pods stay; empty if they leave.

    ``moves``: pods that leave come up on another node.
    """

    kind: str
    title: str
    stays: str = ""
    moves: bool = False


def owner_of(family: str, record: Record) -> Owner:
    """The owner of a record."""
    return Owner(family, kinds.title(family, record.name), record.stays, moves=record.count is not None)


def nobody(owner_id: str) -> Owner:
    """An owner that has no record."""
    return Owner("", owner_id, "no record has that id, so no farm moves its pods")


async def find_owner(client: ConsulClient, keys: Keys, owner_id: str) -> Owner:
    """An owner, from the store; one whose record does not decode moves nothing."""
    for family in families.owners():
        entry = await client.read(keys.record(family.name, owner_id))
        if entry is not None:
            try:
                return owner_of(family.name, families.decode(keys, family.name, entry))
            except RecordInvalid as error:
                return Owner("", owner_id, error.message)
    for family in families.actors():
        entry = await client.read(keys.record(family.name, owner_id))
        with suppress(RecordInvalid):
            record = None if entry is None else families.decode(keys, family.name, entry)
            if record is not None and (during := families.acting(family.name, record)):
                title = kinds.title(family.name, record.name)
                return Owner("", title, f"{during} runs it, and takes it away once it has ended")
    return nobody(owner_id)


async def reason(client: ConsulClient, keys: Keys, owner_id: str, owner: Owner) -> str:
    """Why an owner's pods are still there, in one line for people; empty while they are leaving."""
    if owner.stays:
        return f"{owner.title}: {owner.stays}"
    entry = await client.read(keys.status(owner.kind, owner_id))
    try:
        status = codec.decode(_Reported, entry.value, entry.key) if entry is not None else _Reported()
    except RecordInvalid:
        status = _Reported()
    return f"{owner.title}: {status.reason}" if status.reason else ""
