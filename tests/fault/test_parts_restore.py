"""A tree that is read in parts goes back with a Consul that is restored from a snapshot (R23)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from farmd.runtime.clock import SystemIds
from store import cache, codec, operations
from store.cache import PrefixCache
from store.consul.client import ConsulClient
from store.keys import Keys, is_sentinel
from store.nodes import Node
from store.registration import register_cluster
from tests.fleet import CLOCK, client_of, eventually
from tests.servers import ConsulServer

KEYS = Keys("parts/")
TREE = KEYS.tree("rcs")
KEYS_HELD = [f"{TREE}{number:03x}" for number in range(0, 0x1000, 4)]
WAIT_SECONDS = 2.0


async def write(client: ConsulClient, keys: list[str], version: str) -> None:
    body = codec.encode(Node(labels={"version": version}))
    await commit(client, [operations.put(key, body) for key in keys])


async def commit(client: ConsulClient, writes: list[operations.Operation]) -> None:
    for start in range(0, len(writes), operations.MAX_OPERATIONS):
        await client.transaction(writes[start : start + operations.MAX_OPERATIONS])


async def stored(client: ConsulClient) -> dict[str, str]:
    page = await client.list(TREE, mode="consistent")
    return {
        raw.key: codec.decode(Node, raw.decoded(), raw.key).labels["version"]
        for raw in page.items
        if not is_sentinel(raw.key)
    }


@pytest.mark.parametrize("how", ["at rest", "edited", "barrier"])
async def test_r23_a_tree_that_is_read_in_parts_goes_back_with_the_store(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Records of one part were changed, those of another deleted, and those of a third created, all after
    the snapshot. A write after the restore, to a part of its own, has a higher index than all of these. A
    barrier then finds nothing but parts with lower indexes; the parked query has not told of the restore.
    """
    monkeypatch.setattr(cache, "IN_PARTS_ABOVE", len(KEYS_HELD) // 2)
    changed, deleted, created, others = (
        [key for key in KEYS_HELD if key.startswith(TREE + digit)] for digit in "1234"
    )
    with ConsulServer(dev=False) as consul:
        client, signs = client_of(consul.address), list[str]()
        cluster = await register_cluster(client, KEYS, SystemIds())
        await write(client, [key for key in KEYS_HELD if key not in created], "old")
        snapshot = await asyncio.to_thread(consul.snapshot)
        copy = PrefixCache[Node](
            client,
            KEYS,
            "rcs",
            Node,
            cluster=cluster,
            clock=CLOCK,
            rng=random.Random(1),
            wait=WAIT_SECONDS,
            on_restore=lambda: signs.append("restored"),
        )

        async def same() -> bool:
            held = {key: known.record.labels["version"] for key, known in copy.entries.items()}
            return held == await stored(client)

        async def divided() -> bool:
            return bool(copy._shards[0].parts)

        following = asyncio.create_task(copy.run())
        try:
            await eventually(divided, what="a look at the parts")
            await write(client, [*changed, *created], "new")
            await commit(client, [operations.delete(key) for key in deleted])
            await eventually(same, what="a copy of what was written")
            await copy.barrier()  # the parts' indexes are those of the last write
            assert not signs
            if how == "barrier":
                following.cancel()
                await asyncio.wait([following])
            await asyncio.to_thread(consul.restore, snapshot)
            if how != "at rest":
                await write(client, others[:1], "late")
            if how == "barrier":
                assert not signs
                await copy.barrier()
            await eventually(same, what="a copy of what was restored")
            assert {copy.entries[key].record.labels["version"] for key in changed} == {"old"}
            await eventually(lambda: asyncio.sleep(0, bool(signs)), what="a sign of the restore")
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await client.close()
