"""Labels over the whole way: client, HTTP, embedded server, with Consul's own transaction rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from farmd.runtime.clock import SystemClock, SystemIds
from store import codec, families, operations, pods
from store.consul.client import ConsulClient
from store.consul.transport import connect
from store.embedded.http import HttpFace
from store.embedded.server import EmbeddedServer
from store.errors import TransactionRejected
from store.keys import Keys
from store.labels import RC_ID_LABEL, LabelType, StoreLabeler
from store.pods import PodKey, current_pods
from store.selectors import parse

KEYS = Keys()


@pytest.fixture
async def client() -> AsyncIterator[ConsulClient]:
    """A client of a registered, otherwise empty cluster."""
    clock = SystemClock()
    async with HttpFace(EmbeddedServer(clock, rng=Random(1), ids=SystemIds())) as face:
        client = connect({"CONSUL_HTTP_ADDR": face.address}, clock)
        for key in families.sentinels(KEYS):
            await client.transaction([operations.create(key, b'"cluster-1"')])
        yield client
        await client.close()


async def test_a_pod_is_labelled_placed_and_found_in_one_transaction(client: ConsulClient) -> None:
    labeler = StoreLabeler(client, KEYS, cluster="cluster-1")
    assert await labeler.get_matches(parse(""), LabelType.POD) == []
    assert await current_pods("f1", client, KEYS) == {}
    pod = pods.Pod("m", {RC_ID_LABEL: "f1"})
    items = [operations.create(KEYS.pod("f1", "n1", "web"), codec.encode(pod))]
    items += await labeler.set_labels_txn(LabelType.NODE, "n1", {"zone": "a"})
    await client.transaction(items)
    assert {key: stored.record for key, stored in (await current_pods("f1", client, KEYS)).items()} == {
        PodKey("f1", "n1", "web"): pod
    }
    found = await labeler.get_matches(parse(f"{RC_ID_LABEL}=f1"), LabelType.POD)
    assert [labeled.id for labeled in found] == ["f1/n1/web"]
    assert [n.id for n in await labeler.get_matches(parse("zone in (a,b)"), LabelType.NODE)] == ["n1"]


async def test_a_txn_fails_whole_if_labels_change(client: ConsulClient) -> None:
    labeler = StoreLabeler(client, KEYS)
    await client.transaction(await labeler.set_labels_txn(LabelType.NODE, "n1", {"a": "1"}))
    items = await labeler.set_labels_txn(LabelType.NODE, "n1", {"b": "2"})
    await client.transaction(await labeler.set_labels_txn(LabelType.NODE, "n1", {"c": "3"}))
    with pytest.raises(TransactionRejected) as caught:
        await client.transaction([operations.put("farmd/other", b"1"), *items])
    assert [error.index for error in caught.value.errors] == [1]
    assert (await labeler.get_labels(LabelType.NODE, "n1")).labels == {"a": "1", "c": "3"}
    assert await client.read("farmd/other") is None
