"""Registration of a cluster and its nodes: only this module creates sentinels (R20).

A sentinel ``<prefix>.present`` holds the cluster id. An answer with the sentinel is valid even if it
is otherwise empty; an answer without it proves nothing. A running process never registers again: after
the store was wiped it must find no sentinels, and freeze.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from store import codec, families, operations
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import NotRegistered, SchemaTooNew, TransactionRejected
from store.keys import Keys
from store.operations import Operation
from store.ports import Ids

SCHEMA_VERSION = 1
OLDEST_ALLOWED = 1


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schema version that is written, and the oldest schema version that may still run.

    ``families`` are the younger families whose sentinels were created: they are created once, ever.
    """

    version: int
    oldest: int
    families: list[str] = []


def sentinel_value(cluster: str) -> bytes:
    """The value of a sentinel: the cluster id as a JSON string."""
    return msgspec.json.encode(cluster)


def sentinel(key: str, cluster: str) -> Operation:
    """The operation that creates one missing sentinel.

    It is for a tree that is younger than the cluster, and only if a person confirms that the tree never had
    records: from then on an empty answer is valid.
    """
    return operations.create(key, sentinel_value(cluster))


async def cluster_id(client: ConsulClient, keys: Keys) -> str:
    """The id of the registered cluster.

    Raises:
        NotRegistered: no cluster is registered under this prefix.
        RecordInvalid: the id does not decode.
    """
    entry = await client.read(keys.cluster)
    if entry is None:
        raise NotRegistered(
            f"{keys.cluster}: no cluster is registered here; start a farm first", key=keys.cluster
        )
    return codec.decode(str, entry.value, keys.cluster)


async def register_cluster(client: ConsulClient, keys: Keys, ids: Ids) -> str:
    """Return the cluster's id; register a new cluster if there is none, and the families that it lacks.

    Several farms may call this at once: each transaction creates all of its keys or none.

    Raises:
        SchemaTooNew, RecordInvalid: as ``read_schema``.
    """
    try:
        cluster = await cluster_id(client, keys)
    except NotRegistered:
        cluster = await _create_cluster(client, keys, ids.new())
    await _add_families(client, keys, cluster)
    return cluster


async def _create_cluster(client: ConsulClient, keys: Keys, cluster: str) -> str:
    schema = msgspec.json.encode(Schema(SCHEMA_VERSION, OLDEST_ALLOWED))
    value = sentinel_value(cluster)
    creations = [operations.create(keys.cluster, value), operations.create(keys.schema, schema)]
    first = [family for family in families.FAMILIES.values() if not family.younger]
    creations += [operations.create(key, value) for key in families.sentinels(keys, first)]
    try:
        await client.transaction(creations)
    except TransactionRejected:
        return await cluster_id(client, keys)
    return cluster


async def _add_families(client: ConsulClient, keys: Keys, cluster: str) -> None:
    """Create the sentinels of families that are younger than the cluster, where no farm did so before (R20).

    A family that the schema names already permits nothing: if its sentinel is missing, the store was wiped.
    """
    entry = await read_schema(client, keys)
    schema = codec.decode(Schema, entry.value, keys.schema)
    missing = [family for family in families.younger() if family.name not in schema.families]
    if not missing:
        return
    known = [*schema.families, *(family.name for family in missing)]
    after = codec.rewrite(msgspec.structs.replace(schema, families=known), entry.value)
    value = sentinel_value(cluster)
    creations = []
    for key in families.sentinels(keys, missing):
        standing = await client.read(key)  # a person may have created it: farmctl doctor --fix
        if standing is None or standing.value != value:
            creations.append(operations.create(key, value))
    # Where another farm was faster, it created the same.
    with contextlib.suppress(TransactionRejected):
        await client.transaction([operations.cas(keys.schema, after, entry.modify_index), *creations])


async def read_schema(client: ConsulClient, keys: Keys) -> Entry:
    """The schema's entry; claims carry ``check-index`` on it.

    Raises:
        NotRegistered: the schema is missing.
        SchemaTooNew: the schema no longer allows this version of farmd.
        RecordInvalid: the schema does not decode.
    """
    entry = await client.read(keys.schema)
    if entry is None:
        raise NotRegistered(f"{keys.schema}: missing, no cluster is registered here", key=keys.schema)
    schema = codec.decode(Schema, entry.value, keys.schema)
    if schema.oldest > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{keys.schema}: the cluster needs schema {schema.oldest} or newer, this farmd writes"
            f" {SCHEMA_VERSION}: upgrade it",
            key=keys.schema,
        )
    return entry


async def prove(client: ConsulClient, keys: Keys, names: Iterable[str]) -> None:
    """Check that the sentinels of these families are there: what is not in a tree then does not exist (R20).

    Raises:
        NotRegistered: a sentinel is missing, or hidden from this token.
        SchemaTooNew, RecordInvalid: as ``read_schema``.
    """
    schema = codec.decode(Schema, (await read_schema(client, keys)).value, keys.schema)
    wanted = [families.FAMILIES[name] for name in names]
    there = [family for family in wanted if not family.younger or family.name in schema.families]
    expected = families.sentinels(keys, there)
    for key, found in zip(expected, await asyncio.gather(*map(client.read, expected)), strict=True):
        if found is None:
            raise NotRegistered(
                f"{key}: missing, or this token may not read it: missing records may still exist",
                key=key,
                hint="farmctl doctor",
            )


async def check_node(client: ConsulClient, keys: Keys, node: str) -> None:
    """Check that ``register_node`` would be allowed, before the agent announces the node.

    Consul demands the right to write a key even if a transaction only checks that it is absent.

    Raises:
        AccessDenied: the node is not registered, and this token may not register it.
    """
    sentinel = keys.sentinel(keys.intents(node))
    if await client.read(sentinel) is None:
        with contextlib.suppress(TransactionRejected):  # the node was registered meanwhile
            await client.transaction([operations.check_not_exists(sentinel)])


async def register_node(client: ConsulClient, keys: Keys, node: str) -> None:
    """Create the sentinel of a node's intents. An agent calls it only while it runs no workload.

    Raises:
        NotRegistered: there is no cluster.
    """
    cluster = await cluster_id(client, keys)
    sentinel = keys.sentinel(keys.intents(node))
    if await client.read(sentinel) is None:
        await client.put(sentinel, sentinel_value(cluster), cas=0)
