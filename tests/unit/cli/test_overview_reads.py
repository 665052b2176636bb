"""What commands read of a fleet: a distant store costs its delay once, and a large fleet is read once."""

from __future__ import annotations

import asyncio
from typing import Any

from farmd import overview
from farmd.cli.changes import apply
from farmd.cli.invocation import Invocation
from farmd.cli.settings import Settings
from farmd.replication.commands import RC
from store import codec
from store.pods import Pod
from store.rcs import ReplicationController
from tests.people import KEYS, hello, person

OWNER = ReplicationController(
    id="00aa00aa00aa00aa", name="web", manifest="0" * 64, pod_id="web", replicas_desired=2
)
NODES = ("n1", "n2")


async def test_the_realities_of_an_owners_nodes_are_read_side_by_side() -> None:
    async with person() as call:
        for node in NODES:
            await call.client.put(KEYS.pod(OWNER.id, node, "web"), codec.encode(Pod(manifest="0" * 64)))
        wanted, asked, read = {KEYS.realities(node) for node in NODES}, set[str](), call.client.list

        async def together(prefix: str, **more: Any) -> Any:
            """Answer for no node before both are asked for."""
            asked.update({prefix} & wanted)
            while prefix in wanted and asked != wanted:
                await asyncio.sleep(0)
            return await read(prefix, **more)

        call.client.list = together  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            rows = (await overview.pods(call.client, KEYS, OWNER)).placed
        assert [row.node for row in rows] == list(NODES)


async def test_a_dry_run_of_many_documents_reads_the_fleet_once() -> None:
    async with person() as call:
        specs = [RC.file.parse(hello(name=name), "test") for name in ("web", "db", "cache")]
        mutations = [await RC.create(call, spec) for spec in specs]
        read, asked = call.client.list, list[str]()

        async def counted(prefix: str, **more: Any) -> Any:
            asked.append(prefix)
            return await read(prefix, **more)

        call.client.list = counted  # type: ignore[method-assign]
        await apply(Invocation(Settings(dry_run=True), call), mutations)
        assert sorted(asked) == sorted(set(asked))
        assert KEYS.tree("pods") in asked
