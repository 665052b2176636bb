"""Pods with a port that their agents report, and services that name them: for tests."""

from __future__ import annotations

from typing import Any

from farmd.commands.mutation import Call, commit
from farmd.services import commands
from store import codec
from store.named import NamedRecords
from store.nodes import Agent
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Health, HealthState, Intent, Phase, Reality
from store.services import Catalog
from tests.people import created

PORTS = {"http": {"port": 0}, "admin": {"port": 0}}


async def controller(call: Call, name: str = "web", **fields: Any) -> ReplicationController:
    """A controller whose pods have the ports ``http`` and ``admin``."""
    await created(call, name=name, **{"replicas": 2, "pod_ports": PORTS, **fields})
    records = NamedRecords(call.client, call.keys, "rcs", ReplicationController, "rc")
    return (await records.find(name)).record


async def agent(call: Call, node: str, address: str = "") -> None:
    """The presence of a node's agent."""
    record = Agent(node=node, version="1", address=address or f"http://{node}.test:8101")
    await call.client.put(call.keys.agent(node), codec.encode(record))


async def pod(
    call: Call,
    rc: ReplicationController,
    node: str,
    *,
    port: int = 20001,
    state: HealthState = "passing",
    instance: str = "hello",
    phase: Phase = "running",
    leaves_until: float = 0.0,
) -> None:
    """A pod that its node runs, with what its agent says of it."""
    keys, now = call.keys, call.clock.now()
    await call.client.put(keys.pod(rc.id, node, instance), codec.encode(Pod(rc.manifest, at=now)))
    intent = keys.intent(node, instance)
    if await call.client.read(intent) is None:
        await call.client.put(intent, codec.encode(Intent(rc.manifest, rc.id)))
    entry = await call.client.read(intent)
    assert entry is not None
    said = Reality(
        manifest=rc.manifest,
        owner=rc.id,
        started=1.0,
        intent=entry.modify_index,
        ports={"http": port, "admin": port + 1000},
        health=Health(state, since=now),
        phase=phase,
        leaves_until=leaves_until,
    )
    await call.client.put(keys.reality(node, instance), codec.encode(said))


async def service(
    call: Call, *owners: str, name: str = "web", port: str = "http", catalog: Catalog | None = None
) -> str:
    """Create a service; its id."""
    mutation = await commands.create(call, name, port, owners, catalog)
    await commit(call, mutation)
    return mutation.change.id
