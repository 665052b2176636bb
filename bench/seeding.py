"""Writes large fleets of converged RCs straight into the store, with the records that farms would write."""

from __future__ import annotations

import hashlib

from bench.rig import write_all
from farmd.runtime.clock import SystemClock, SystemIds
from store import codec, manifests, operations
from store.audit import Audit, AuditLogStore
from store.consul.client import ConsulClient
from store.entry import RawEntry
from store.keys import HEX_DIGITS, Keys, is_sentinel
from store.manifests import Manifest
from store.nodes import Node
from store.operations import Operation
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent
from store.registration import cluster_id, sentinel_value
from store.status import Status
from tests.fleet import KEYS

HELD_AT_ONCE = 100_000
"""How many operations wait in memory before they are written."""


def rc_id(number: int) -> str:
    """An id that looks uniformly random and is the same in every run."""
    return hashlib.blake2b(str(number).encode(), digest_size=8).hexdigest()


def node_names(count: int) -> list[str]:
    """The node names of a fleet of ``count`` nodes."""
    return [f"node-{number:05d}" for number in range(count)]


async def register_nodes(client: ConsulClient, count: int, keys: Keys = KEYS) -> None:
    """Write the nodes' records and the sentinels of their intents; the agents announce themselves."""
    sentinel = sentinel_value(await cluster_id(client, keys))
    record = codec.encode(Node(labels={"pool": "web"}))
    writes = []
    for name in node_names(count):
        writes.append(operations.put(keys.node(name), record))
        writes.append(operations.put(keys.sentinel(keys.intents(name)), sentinel))
    await write_all(client, writes)


async def seed_rcs(
    client: ConsulClient, count: int, *, pods_each: int = 0, nodes: int = 0, labelled: int = 0
) -> None:
    """Write RCs with ``pods_each`` pods each, and the records and intents of these pods on ``nodes`` nodes.

    The first ``labelled`` RCs have the label ``bench=moving``.
    """
    writes: list[Operation] = []
    audit = AuditLogStore(KEYS, SystemClock(), SystemIds())
    for number in range(count):
        manifest = Manifest(id=f"app-{number}", command=["sleep", "1000"])
        body = manifests.canonical(manifest)
        rc = ReplicationController(
            id=rc_id(number),
            name=f"app-{number}",
            manifest=manifests.digest(body),
            pod_id=manifest.id,
            replicas_desired=pods_each,
            node_selector="pool=web",
            labels={"bench": "moving"} if number < labelled else {},
        )
        writes += _records(rc, body)
        writes.append(audit.operation(_created(rc, audit.now())))
        for copy in range(pods_each):
            writes += _pod(rc, manifest.id, f"node-{(number * pods_each + copy) % nodes:05d}")
        if len(writes) > HELD_AT_ONCE:
            await write_all(client, writes)
            writes = []
    await write_all(client, writes)
    for digit in HEX_DIGITS:
        await write_all(client, [_status(raw) for raw in await _listed(client, digit)])


async def _listed(client: ConsulClient, digit: str) -> list[RawEntry]:
    page = await client.list(f"{KEYS.tree('rcs')}{digit}")
    return [raw for raw in page.items if not is_sentinel(raw.key)]


def _status(raw: RawEntry) -> Operation:
    """The status of a converged RC. It names the record that it is about, or a farm would write it again."""
    rc = codec.decode(ReplicationController, raw.decoded(), raw.key)
    pods = rc.replicas_desired
    status = Status(
        state="converged", record=raw.modify_index, desired=pods, placed=pods, healthy=pods, serving=pods
    )
    return operations.put(KEYS.status("rcs", rc.id), codec.encode(status))


def _records(rc: ReplicationController, body: bytes) -> list[Operation]:
    return [
        operations.put(KEYS.manifest(rc.manifest), body),
        operations.put(KEYS.record("rcs", rc.id), codec.encode(rc)),
        operations.put(KEYS.name("rcs", rc.name), codec.encode(rc.id)),
    ]


def _created(rc: ReplicationController, at: float) -> Audit:
    return Audit(
        at=at,
        actor="user/bench",
        action="rc.create",
        kind="rcs",
        id=rc.id,
        name=rc.name,
        before={"exists": False},
        after={"exists": True, "replicas_desired": rc.replicas_desired},
    )


def _pod(rc: ReplicationController, instance: str, node: str) -> list[Operation]:
    labels = {"pod_id": rc.pod_id, "replication_controller_id": rc.id}
    return [
        operations.put(
            KEYS.pod(rc.id, node, instance), codec.encode(Pod(manifest=rc.manifest, labels=labels, at=1.0))
        ),
        operations.put(KEYS.intent(node, instance), codec.encode(Intent(manifest=rc.manifest, owner=rc.id))),
    ]
