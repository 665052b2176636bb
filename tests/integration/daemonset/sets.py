"""Daemon sets on a real Consul, and what tests ask of them."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations
from store.daemonsets import DaemonSet
from store.manifests import Manifest
from store.status import Status
from tests.fleet import HELLO, Cluster, eventually

GOOD, BAD = {"nodeQuality": "good"}, {"nodeQuality": "bad"}
SELECTOR = "nodeQuality=good"
KINDS = ("rcs", "daemonsets")


async def create(
    cluster: Cluster, name: str = "logs", *, manifest: Manifest = HELLO, **fields: Any
) -> DaemonSet:
    """Write a daemon set with its manifest, as ``farmctl daemonset create`` would."""
    body = manifests.canonical(manifest)
    sha = manifests.digest(body)
    made = DaemonSet(
        **({"id": SystemIds().new(), "node_selector": SELECTOR, "min_healthy_time": 0.0} | fields),
        name=name,
        manifest=sha,
        pod_id=manifest.id,
    )
    await cluster.client.transaction(
        [
            operations.put(cluster.keys.manifest(sha), body),
            operations.create(cluster.keys.record("daemonsets", made.id), codec.encode(made)),
            operations.create(cluster.keys.name("daemonsets", name), codec.encode(made.id)),
        ]
    )
    return made


async def change(cluster: Cluster, daemonset: DaemonSet, **fields: Any) -> DaemonSet:
    changed = msgspec.structs.replace(daemonset, **fields)
    await cluster.put(cluster.keys.record("daemonsets", daemonset.id), changed)
    return changed


async def on(cluster: Cluster, daemonset: DaemonSet, *nodes: str) -> None:
    """Return once its pods stand on exactly these nodes."""

    async def there() -> bool:
        return [node for node, _ in await cluster.pods(daemonset.id)] == sorted(nodes)

    await eventually(there, what=f"pods on {nodes}")


async def status(cluster: Cluster, daemonset: DaemonSet) -> Status:
    entry = await cluster.client.read(cluster.keys.status("daemonsets", daemonset.id))
    return Status(state="progressing") if entry is None else codec.decode(Status, entry.value, entry.key)


async def said(cluster: Cluster, daemonset: DaemonSet, state: str, text: str = "", **counts: int) -> Status:
    """Its status, once it is so; one from before the last change may be of that state with other counts."""

    async def says() -> Status | None:
        found = await status(cluster, daemonset)
        so = found.state == state and text in found.reason
        return found if so and all(getattr(found, name) == count for name, count in counts.items()) else None

    return await eventually(says, what=f"status {state} {text!r} {counts}")  # type: ignore[no-any-return]


async def consistent(cluster: Cluster, daemonset: DaemonSet) -> None:
    """Pods and intents agree, and the audit adds up to what stands."""
    pods = await cluster.pods(daemonset.id)
    intents = await cluster.intents()
    assert {place for place, intent in intents.items() if intent.owner == daemonset.id} == set(pods)
    audited: set[str] = set()
    for audit in await cluster.audits():
        if audit.id == daemonset.id and audit.action.startswith("pods."):
            assert not audited & set(audit.placed)
            audited = (audited | set(audit.placed)) - set(audit.removed)
    assert audited == {f"{node}/{instance}" for node, instance in pods}
