"""A farm's copy of a large tree keeps the values that it needs to rewrite a record whole, and no other."""

from __future__ import annotations

import random

import pytest

from store import codec
from store.cache import PrefixCache
from store.families import INTENT
from store.keys import Keys
from store.reality import Intent
from store.registration import register_cluster
from tests.virtual import SeededIds, VirtualClock, embedded_client

KEYS = Keys()
KEY = KEYS.intent("n1", "web")
PLAIN = codec.encode(Intent("a" * 64, "0b", 2))
NEWER = PLAIN[:-1] + b',"later":{"a":"1"}}'


async def intents() -> PrefixCache[Intent]:
    """The copy of a store with an intent of this version and one of a newer version."""
    clock = VirtualClock()
    client = embedded_client(clock)
    cluster = await register_cluster(client, KEYS, SeededIds())
    await client.put(KEY, NEWER)
    await client.put(KEYS.intent("n2", "web"), PLAIN)
    cache = PrefixCache[Intent](
        client,
        KEYS,
        INTENT.name,
        Intent,
        cluster=cluster,
        clock=clock,
        rng=random.Random(1),
        keep_unknown=INTENT.keep_unknown,
        compact=INTENT.compact(),
    )
    await cache.barrier()
    return cache


async def test_only_values_with_unknown_fields_are_kept() -> None:
    found = (await intents()).entries
    assert {key: stored.raw for key, stored in found.items()} == {KEY: NEWER, KEYS.intent("n2", "web"): b""}
    assert [stored.record for stored in found.values()] == [Intent("a" * 64, "0b", 2)] * 2


@pytest.mark.parametrize(("raw", "kept"), [(NEWER, NEWER), (PLAIN, b""), (b"", b"")])
async def test_an_own_write_is_kept_alike(raw: bytes, kept: bytes) -> None:
    cache = await intents()
    cache.wrote(KEY, Intent("a" * 64, "0b", 2), 10_000, raw)
    assert cache.entries[KEY].raw == kept
