"""A cluster is registered once and never over another; only registration makes sentinels (R20)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from store.consul.client import ConsulClient
from store.errors import NotRegistered, RecordInvalid, SchemaTooNew
from store.families import shards
from store.keys import Keys
from store.registration import cluster_id, read_schema, register_cluster, register_node
from tests.virtual import SeededIds, VirtualClock, embedded_client

KEYS = Keys("t/")


@pytest.fixture
def client() -> ConsulClient:
    return embedded_client(VirtualClock())


async def everything(client: ConsulClient) -> dict[str, bytes]:
    page = await client.list("")
    return {raw.key: raw.decoded() for raw in page.items}


async def test_r20_every_watched_prefix_gets_a_sentinel_with_the_cluster_id(client: ConsulClient) -> None:
    cluster = await register_cluster(client, KEYS, SeededIds())
    found = await everything(client)
    watched = [KEYS.tree(f) for f in ("rcs", "pods", "nodes", "agents", "farms", "locks", "work", "failsafe")]
    watched += [shard for tree in ("rcs", "pods", "reality") for shard in shards(KEYS, tree)]
    for prefix in watched:
        assert msgspec.json.decode(found[prefix + ".present"]) == cluster


async def test_farms_that_race_register_once(client: ConsulClient) -> None:
    clusters = await asyncio.gather(*(register_cluster(client, KEYS, SeededIds(n)) for n in range(8)))
    assert len(set(clusters)) == 1
    assert await cluster_id(client, KEYS) == clusters[0]


async def test_a_registered_cluster_is_never_touched(client: ConsulClient) -> None:
    cluster = await register_cluster(client, KEYS, SeededIds(1))
    before = await client.list("")
    assert await register_cluster(client, KEYS, SeededIds(2)) == cluster
    assert (await client.list("")) == before


async def test_r20_missing_sentinels_of_a_living_cluster_are_not_made_anew(client: ConsulClient) -> None:
    await register_cluster(client, KEYS, SeededIds(1))
    await client.delete(KEYS.tree("rcs"), recurse=True)
    await register_cluster(client, KEYS, SeededIds(2))
    assert await client.read(KEYS.sentinel(KEYS.tree("rcs"))) is None


async def test_r20_what_is_left_of_a_cluster_is_not_taken_over(client: ConsulClient) -> None:
    """The id is gone, sentinels of the old cluster stand: a person has to look at this."""
    await register_cluster(client, KEYS, SeededIds(1))
    await client.delete(KEYS.cluster)
    before = await everything(client)
    with pytest.raises(NotRegistered):
        await register_cluster(client, KEYS, SeededIds(2))
    assert await everything(client) == before


async def test_where_nothing_is_registered_that_is_said(client: ConsulClient) -> None:
    with pytest.raises(NotRegistered, match="start a farm first"):
        await cluster_id(client, KEYS)
    with pytest.raises(NotRegistered, match="missing"):
        await read_schema(client, KEYS)


async def test_two_prefixes_are_two_clusters(client: ConsulClient) -> None:
    one = await register_cluster(client, Keys("one/"), SeededIds(1))
    two = await register_cluster(client, Keys("two/"), SeededIds(2))
    assert one != two


async def test_a_schema_that_is_too_new_is_refused_with_what_to_do(client: ConsulClient) -> None:
    await register_cluster(client, KEYS, SeededIds())
    await client.put(KEYS.schema, b'{"version": 3, "oldest": 2}')
    with pytest.raises(SchemaTooNew, match="upgrade it"):
        await read_schema(client, KEYS)
    await client.put(KEYS.schema, b'{"version": 3, "oldest": 1}')
    assert (await read_schema(client, KEYS)).modify_index > 0


@pytest.mark.parametrize("value", [b"", b"{", b"7", b'{"version": 1}'])
async def test_corrupt_registration_is_one_clear_error(client: ConsulClient, value: bytes) -> None:
    await client.put(KEYS.cluster, value)
    await client.put(KEYS.schema, value)
    with pytest.raises(RecordInvalid, match=KEYS.cluster):
        await cluster_id(client, KEYS)
    with pytest.raises(RecordInvalid, match=KEYS.schema):
        await read_schema(client, KEYS)


# -- nodes -------------------------------------------------------------------------------------
async def test_r20_a_node_is_registered_with_its_cluster(client: ConsulClient) -> None:
    with pytest.raises(NotRegistered):
        await register_node(client, KEYS, "n1")
    cluster = await register_cluster(client, KEYS, SeededIds())
    await asyncio.gather(*(register_node(client, KEYS, "n1") for _ in range(3)))
    entry = await client.read(KEYS.sentinel(KEYS.intents("n1")))
    assert entry is not None
    assert msgspec.json.decode(entry.value) == cluster


async def test_r20_a_sentinel_of_another_cluster_is_never_replaced(client: ConsulClient) -> None:
    await register_cluster(client, KEYS, SeededIds())
    sentinel = KEYS.sentinel(KEYS.intents("n1"))
    await client.put(sentinel, b'"another"')
    await register_node(client, KEYS, "n1")
    entry = await client.read(sentinel)
    assert entry is not None
    assert entry.value == b'"another"'
