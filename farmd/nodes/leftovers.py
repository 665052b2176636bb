"""What still stands on a node, and what keeps it there: read for a drain, and for whoever plans one.

An intent is a pod that the node must run, a reality one that it does run: a drain waits for both. An
answer without the node's own sentinel proves no absence (R20).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from farmd.farm.manifests import ManifestCache
from farmd.nodes.model import Leftover
from store import codec
from store.daemonsets import DaemonSet
from store.entry import RawEntry
from store.errors import NotFound, NotRegistered, RecordInvalid
from store.keys import Keys, is_sentinel
from store.rcs import ReplicationController

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

UNKNOWN_OWNER = "unknown"


class _Said(msgspec.Struct):
    """The part that an intent and a reality have in common."""

    manifest: str = ""
    owner: str = UNKNOWN_OWNER


class _Reported(msgspec.Struct):
    """The part that the statuses of all owners have in common."""

    reason: str = ""


class SystemPods:
    """Which manifests are a system pod's."""

    def __init__(self, client: ConsulClient, keys: Keys) -> None:
        self._manifests = ManifestCache(client, keys)

    async def __call__(self, sha: str) -> bool:
        """Whether it is; a pod whose manifest cannot be read is not kept for later."""
        try:
            return (await self._manifests.get(sha)).system
        except (NotFound, RecordInvalid):
            return False


async def read(
    client: ConsulClient, keys: Keys, node: str, system: SystemPods, *, running: bool = True
) -> tuple[Leftover, ...]:
    """The pods of a node by instance; ``running``: also those that merely run there still.

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
    # What the node must run is said last: it knows better whose the pod is.
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
        return _Said()  # it stands there all the same, and nobody may take it for gone


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose pods they are: ``kind`` and ``title`` (``rc/web``), and why they stay; empty when they move."""

    kind: str
    title: str
    stays: str = ""


def owner_of(controller: ReplicationController | None, daemon_set: DaemonSet | None, owner_id: str) -> Owner:
    """What is known of an owner from its record, of either family."""
    if controller is not None:
        stays = "disabled, so its pods stay" if controller.disabled else ""
        managed = f"managed by {controller.managed_by}" if controller.managed_by else ""
        return Owner("rcs", f"rc/{controller.name}", stays or managed)
    if daemon_set is not None:
        stays = "disabled, so its pods stay" if daemon_set.disabled else ""
        return Owner("daemonsets", f"daemonset/{daemon_set.name}", stays)
    return Owner("", owner_id, "no controller of that id; its pods are nobody's to move")


async def find_owner(client: ConsulClient, keys: Keys, owner_id: str) -> Owner:
    """An owner, from the store; one whose record does not decode moves nothing."""
    rc = await client.read(keys.record("rcs", owner_id))
    daemon_set = await client.read(keys.record("daemonsets", owner_id)) if rc is None else None
    try:
        return owner_of(
            codec.decode(ReplicationController, rc.value, rc.key) if rc is not None else None,
            codec.decode(DaemonSet, daemon_set.value, daemon_set.key) if daemon_set is not None else None,
            owner_id,
        )
    except RecordInvalid as error:
        return Owner("", owner_id, error.message)


async def reason(client: ConsulClient, keys: Keys, owner_id: str, owner: Owner) -> str:
    """Why an owner's pods are still there, in one line for people; empty while they are on their way."""
    if owner.stays:
        return f"{owner.title}: {owner.stays}"
    entry = await client.read(keys.status(owner.kind, owner_id))
    try:
        status = codec.decode(_Reported, entry.value, entry.key) if entry is not None else _Reported()
    except RecordInvalid:
        status = _Reported()
    return f"{owner.title}: {status.reason}" if status.reason else ""
