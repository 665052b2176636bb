"""Intents are read anew at the places that are asked for, in as few requests as are cheap (R15)."""

from __future__ import annotations

import pytest

from store import codec, registration
from store.consul.client import ConsulClient
from store.pods import Place
from store.reality import Intent
from tests.contexts import context_on
from tests.people import KEYS, person
from tests.recorders import CountingRecorder
from tests.toys import Faulty


@pytest.mark.parametrize(
    ("known", "asked", "proven", "requests"),
    [(20, 20, True, 1), (2000, 3, True, 3), (2000, 41, True, 2), (20, 20, False, 20), (5, 1, True, 1)],
    ids=["many of a small tree", "few of a large one", "many", "a tree in doubt", "one"],
)
async def test_r15_intents_are_read_anew(known: int, asked: int, proven: bool, requests: int) -> None:
    async with person() as call:
        cluster = await registration.cluster_id(call.client, KEYS)
        transport = Faulty(call.client._send.transport)
        client = ConsulClient(transport, clock=call.clock)
        context = context_on(client, KEYS, cluster, call.clock, call.ids, CountingRecorder())
        places: list[Place] = [(f"n{number}", "web") for number in range(known)]
        for place in places:
            await call.client.put(KEYS.intent(*place), codec.encode(Intent("sha", "former")))
        await context.caches.intent.barrier()
        for place in places[:asked]:
            await call.client.put(KEYS.intent(*place), codec.encode(Intent("sha", "owner")))
        if not proven:
            context.caches.intent._shards[0].doubt = "the answer lacks the sentinel"
        transport.sent.clear()
        await context.placement.reread_intents(places[:asked])
        assert len(transport.sent) == requests
        found = [context.fleet.intent(place) for place in places[:asked]]
        assert {stored.record.owner for stored in found if stored is not None} == {"owner"}
