"""What the client sends and how it reads good answers; metrics by a closed set of operations."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from farmd.observe.recorder import Metrics
from store import operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.exchange import STATUSES, Op
from store.consul.transport import HttpTransport
from store.entry import Entry, Page
from store.errors import StoreError, UnexpectedAnswer
from tests.scripted_consul import Answer, Scripted, Seen, json_answer, text_answer, yes
from tests.virtual import VirtualClock

PAIR = (
    '{"LockIndex":2,"Key":"a/b","Flags":5,"Value":"aGk=","Session":"s",'
    '"CreateIndex":3,"ModifyIndex":4,"New":1}'
)


async def exchange(answer: Answer, call: str, *args: object, **options: object) -> tuple[Seen, object]:
    """Call one method of a client against one scripted answer."""
    async with (
        Scripted(answer) as consul,
        HttpTransport(Address.from_environment({}, consul.address)) as transport,
    ):
        result = await getattr(ConsulClient(transport, clock=VirtualClock()), call)(*args, **options)
        return consul.seen[0], result


def body(text: str) -> Answer:
    async def answer(_seen: Seen) -> web.StreamResponse:
        return json_answer(text)

    return answer


async def test_entries_are_decoded_whole_and_newer_fields_do_not_matter() -> None:
    _, found = await exchange(body(f"[{PAIR}]"), "get", "a/b")
    assert found == (7, Entry("a/b", b"hi", 4, 3, 2, 5, "s"))


@pytest.mark.parametrize(("value", "expected"), [("null", b""), ('""', b""), ('"AP8="', b"\x00\xff")])
async def test_values_are_bytes_and_null_is_empty(value: str, expected: bytes) -> None:
    _, page = await exchange(body(f'[{{"Key":"a","ModifyIndex":1,"Value":{value}}}]'), "list", "a")
    assert [Entry.of(raw).value for raw in page.items] == [expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ({}, ""),
        ({"mode": "consistent"}, "?consistent="),
        ({"mode": "stale"}, "?stale="),
        ({"index": 3, "wait": 1.5}, "?index=3&wait=1500ms"),
    ],
)
async def test_reads_ask_for_their_mode_index_and_wait(options: Mapping[str, object], query: str) -> None:
    seen, _ = await exchange(body(f"[{PAIR}]"), "get", "a/b", **options)
    assert seen.target == f"/v1/kv/a/b{query}"


@pytest.mark.parametrize("call", ["list", "keys"])
async def test_r23_a_wait_that_ended_unchanged_decodes_nothing(call: str) -> None:
    garbage = body("the answer bears index 7; its body is not even looked at")
    _, page = await exchange(garbage, call, "a/", index=7, wait=1.0)
    assert page == Page(7, [], unchanged=True)
    _, page = await exchange(body("[]"), call, "a/", index=6, wait=1.0)
    assert page == Page(7, [])


async def test_keys_with_separator() -> None:
    seen, page = await exchange(body('["a/","b"]'), "keys", "", separator="/")
    assert seen.target == "/v1/kv/?keys=&separator=%2F"
    assert page.items == ["a/", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ({}, ""),
        ({"cas": 0}, "?cas=0"),
        ({"cas": 9, "flags": 3}, "?cas=9&flags=3"),
        ({"acquire": "s"}, "?acquire=s"),
        ({"release": "s"}, "?release=s"),
    ],
)
async def test_put(options: Mapping[str, object], query: str) -> None:
    seen, written = await exchange(yes, "put", "a", b"\x00v", **options)
    assert (seen.method, seen.target, seen.body, written) == ("PUT", f"/v1/kv/a{query}", b"\x00v", True)


async def test_consuls_false_is_false() -> None:
    assert (await exchange(body("false"), "put", "a", b"", cas=1))[1] is False
    assert (await exchange(body("false"), "delete", "a", cas=1))[1] is False


@pytest.mark.parametrize(
    ("options", "query"), [({}, ""), ({"recurse": True}, "?recurse="), ({"cas": 4}, "?cas=4")]
)
async def test_delete(options: Mapping[str, object], query: str) -> None:
    seen, _ = await exchange(yes, "delete", "a", **options)
    assert (seen.method, seen.target) == ("DELETE", f"/v1/kv/a{query}")


async def test_transaction_sends_base64_and_returns_consuls_order() -> None:
    answer = body(f'{{"Results":[{{"KV":{PAIR}}},{{"KV":{PAIR.replace("a/b", "c")}}}],"Errors":null}}')
    seen, found = await exchange(
        answer, "transaction", [operations.create("a/b", b"hi"), operations.get("c"), operations.delete("d")]
    )
    assert (seen.method, seen.target) == ("PUT", "/v1/txn")
    assert json.loads(seen.body) == [
        {"KV": {"Verb": "cas", "Key": "a/b", "Value": "aGk="}},
        {"KV": {"Verb": "get", "Key": "c"}},
        {"KV": {"Verb": "delete", "Key": "d"}},
    ]
    assert [entry.key for entry in found] == ["a/b", "c"]  # type: ignore[attr-defined]


async def test_an_empty_transaction_is_a_success_without_a_request() -> None:
    async with (
        Scripted() as consul,
        HttpTransport(Address.from_environment({}, consul.address)) as transport,
    ):
        assert await ConsulClient(transport, clock=VirtualClock()).transaction([]) == []
        assert consul.seen == []


async def test_r1_a_session_has_an_explicit_empty_list_of_checks() -> None:
    seen, session = await exchange(
        body('{"ID":"s-1"}'), "create_session", name="farm", ttl=10, lock_delay=0.001
    )
    assert session == "s-1"
    assert json.loads(seen.body) == {
        "Name": "farm",
        "TTL": "10s",
        "LockDelay": "1ms",
        "Behavior": "delete",
        "Checks": [],
        "NodeChecks": [],
    }


async def test_two_entries_for_one_key_are_unexpected() -> None:
    with pytest.raises(UnexpectedAnswer):
        await exchange(body(f"[{PAIR},{PAIR}]"), "get", "a/b")


async def test_every_request_is_counted_and_parked_ones_apart() -> None:
    async def answer(seen: Seen) -> web.StreamResponse:
        if seen.target.startswith("/v1/kv/denied"):
            return text_answer("Permission denied", 403)
        return json_answer(f"[{PAIR}]")

    registry = CollectorRegistry()
    async with (
        Scripted(answer) as consul,
        HttpTransport(Address.from_environment({}, consul.address)) as transport,
    ):
        client = ConsulClient(transport, clock=VirtualClock(), recorder=Metrics(registry))
        await client.read("a/b")
        await client.get("a/b", index=1, wait=1)
        with pytest.raises(StoreError):
            await client.read("denied")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("farmd_store_requests_total", op="get", code="200") == 1
    assert value("farmd_store_requests_total", op="watch", code="200") == 1
    assert value("farmd_store_requests_total", op="get", code="403") == 1
    assert value("farmd_store_request_duration_seconds_count", op="get") == 2


def test_the_metrics_table_knows_every_operation_and_code() -> None:
    metrics = Metrics(CollectorRegistry())
    for op in Op:
        for code in [*map(str, STATUSES), "other", "cancelled", "store_unavailable", "outcome_unknown"]:
            metrics.count("farmd_store_requests_total", 1, op=op.value, code=code)
