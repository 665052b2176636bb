"""Large fleets of converged RCs, written straight into the store."""

from __future__ import annotations

import hashlib

from bench.rig import write_all
from store import codec, manifests, operations
from store.consul.client import ConsulClient
from store.intent import Intent
from store.manifests import Manifest
from store.operations import Operation
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Health, Reality
from store.status import Status
from tests.fleet import KEYS


def rc_id(number: int) -> str:
    """A uniformly random looking id, the same in every run."""
    return hashlib.blake2b(str(number).encode(), digest_size=8).hexdigest()


async def seed_rcs(client: ConsulClient, count: int, *, pods_each: int = 0, nodes: int = 0) -> None:
    """Write RCs that want ``pods_each`` pods and have them, intended, real and healthy on ``nodes`` nodes."""
    writes: list[Operation] = []
    for number in range(count):
        manifest = Manifest(id=f"app-{number}", command=["sleep", "1000"])
        body = manifests.canonical(manifest)
        sha = manifests.digest(body)
        rc = ReplicationController(
            id=rc_id(number),
            name=f"app-{number}",
            manifest=sha,
            pod_id=manifest.id,
            replicas_desired=pods_each,
            node_selector="pool=web",
        )
        writes += [
            operations.put(KEYS.manifest(sha), body),
            operations.put(KEYS.record("rcs", rc.id), codec.encode(rc)),
        ]
        status = Status(state="converged", desired=pods_each, placed=pods_each, healthy=pods_each)
        writes.append(operations.put(KEYS.status("rcs", rc.id), codec.encode(status)))
        for copy in range(pods_each):
            writes += _pod(rc, manifest.id, f"node-{(number * pods_each + copy) % nodes:05d}")
    await write_all(client, writes)


def _pod(rc: ReplicationController, instance: str, node: str) -> list[Operation]:
    labels = {"pod_id": rc.pod_id, "replication_controller_id": rc.id}
    reality = Reality(manifest=rc.manifest, owner=rc.id, started=1.0, health=Health("passing", 1.0))
    return [
        operations.put(
            KEYS.pod(rc.id, node, instance), codec.encode(Pod(manifest=rc.manifest, labels=labels, at=1.0))
        ),
        operations.put(KEYS.intent(node, instance), codec.encode(Intent(manifest=rc.manifest, owner=rc.id))),
        operations.put(KEYS.reality(node, instance), codec.encode(reality)),
    ]
