"""A registered store in this process, and somebody who asks: for tests of what people do."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from store import codec, manifest_check
from store.consul.client import ConsulClient
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.keys import Keys
from store.manifests import Manifest
from store.pods import Pod
from store.registration import register_cluster
from tests.still_clock import StillClock

KEYS = Keys()


class CountedIds:
    """Ids that look random and are the same in every run."""

    def __init__(self) -> None:
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return hashlib.sha256(str(self._count).encode()).hexdigest()[:16]


def hello(**fields: Any) -> dict[str, Any]:
    """A controller as a person would write it; ``pod_…`` fields go into the pod (not ``pod_labels``).

    Its pods are available as soon as they are healthy, unless a test says otherwise.
    """
    inner = {name for name in fields if name.startswith("pod_") and name != "pod_labels"}
    pod = {name.removeprefix("pod_"): fields[name] for name in inner}
    rest = {name: value for name, value in fields.items() if name not in inner}
    wait = {"min_healthy_time": 0}
    return {
        "name": "hello",
        "replicas": 3,
        **wait,
        **rest,
        "pod": {"id": "hello", "command": ["sleep", "9"], **pod},
    }


def parsed(data: dict[str, Any], source: str) -> Manifest:
    """The manifest of a person's input, checked."""
    manifest = codec.parse_input(Manifest, data, source)
    manifest_check.check(manifest, source)
    return manifest


@asynccontextmanager
async def person(*, registered: bool = True, reason: str = "") -> AsyncIterator[Call]:
    """A call on an empty, registered store of its own."""
    clock = StillClock(1_800_000_000.0)
    server = EmbeddedServer(clock, rng=random.Random(7), ids=CountedIds())
    client = ConsulClient(InProcessTransport(server), clock=clock)
    ids = CountedIds()
    if registered:
        await register_cluster(client, KEYS, ids)
    try:
        yield Call(client, KEYS, clock, ids, "user/ada@desk", reason)
    finally:
        await client.close()


async def created(call: Call, **fields: Any) -> str:
    """Create ``hello`` and return its id."""
    mutation = await RC.create(call, RC.file.parse(hello(**fields), "test"))
    await commit(call, mutation)
    return mutation.change.id


async def place(call: Call, owner: str, node: str, instance: str = "hello") -> None:
    """Write a pod's key by hand."""
    await call.client.put(KEYS.pod(owner, node, instance), codec.encode(Pod("0" * 64)))


async def snapshot(call: Call) -> dict[str, bytes]:
    """Every key and value of the store."""
    return {raw.key: raw.decoded() for raw in (await call.client.list("")).items}
