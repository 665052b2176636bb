"""Transactions: all or nothing, every verb, every text of refusal, every limit."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from store import operations
from store.embedded.state import Limits
from store.errors import TooLarge, TransactionRejected
from store.operations import MAX_BODY_BYTES, MAX_OPERATIONS
from tests.contract import faces
from tests.contract.faces import NO_UUID, Face, json_of, told

NOWHERE = "11111111-2222-3333-4444-555555555555"
# The page that it names then differs by version.
TOO_LARGE = b"Request body(524289 bytes) too large, max size: 524288 bytes. See https://"


async def refusals(face: Face, *steps: dict[str, Any]) -> list[tuple[int, str]]:
    """Send what must be refused; place and text of each failure."""
    answer = await face.txn(*steps)
    assert answer.status == 409, answer.body
    body = json_of(answer)
    assert body["Results"] is None
    return [(error["OpIndex"], error["What"]) for error in body["Errors"]]


async def test_all_operations_get_one_index(face: Face) -> None:
    results = await face.client.transaction(
        [operations.put(face.key("a"), b"1"), operations.put(face.key("b"), b"2", flags=3)]
    )
    assert [entry.key for entry in results] == [face.key("a"), face.key("b")]
    assert results[0].modify_index == results[1].modify_index == results[0].create_index
    assert [entry.value for entry in results] == [b"", b""]
    assert results[1].flags == 3


async def test_a_rejected_transaction_lists_every_failing_operation_and_writes_nothing(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    tried = [
        operations.put(face.key("b"), b"new"),
        operations.create(face.key("a"), b"2"),
        operations.put(face.key("c"), b"new"),
        operations.check_not_exists(face.key("a")),
        operations.check_index(face.key("c"), 1),
    ]
    with pytest.raises(TransactionRejected) as caught:
        await face.client.transaction(tried)
    assert [error.operation for error in caught.value.errors] == [tried[1], tried[3], tried[4]]
    assert (await face.client.keys(face.prefix)).items == [face.key("a")]


async def test_later_operations_see_what_earlier_ones_did(face: Face) -> None:
    key = face.key("a")
    answer = await face.txn(
        {"Verb": "set", "Key": key, "Value": b"1"},
        {"Verb": "get", "Key": key},
        {"Verb": "set", "Key": key, "Value": b"2"},
        {"Verb": "get-tree", "Key": face.prefix},
        {"Verb": "delete", "Key": key},
        {"Verb": "check-not-exists", "Key": key},
        {"Verb": "set", "Key": key, "Value": b"3"},
    )
    assert answer.status == 200
    values = [result["KV"]["Value"] for result in json_of(answer)["Results"]]
    assert values == [None, "MQ==", None, "Mg==", None]


async def test_deletions_report_nothing(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    answer = await face.txn(
        {"Verb": "delete", "Key": face.key("a")},
        {"Verb": "delete-tree", "Key": face.key("t/")},
        {"Verb": "delete-cas", "Key": face.key("none"), "Index": 5},
    )
    assert json_of(answer) == {"Results": [], "Errors": None}


async def test_the_texts_of_refusals(face: Face) -> None:
    key, none, mine = face.key("a"), face.key("none"), await face.session()
    await face.client.put(key, b"1")
    index = (await face.client.get(key))[0]
    assert await refusals(
        face,
        {"Verb": "cas", "Key": key, "Index": 1},
        {"Verb": "cas", "Key": key, "Index": 0},
        {"Verb": "cas", "Key": none, "Index": 5},
        {"Verb": "delete-cas", "Key": key, "Index": 1},
        {"Verb": "lock", "Key": key, "Session": NOWHERE},
        {"Verb": "lock", "Key": key},
        {"Verb": "lock", "Key": key, "Session": "abc"},
        {"Verb": "unlock", "Key": key, "Session": mine},
        {"Verb": "check-index", "Key": key, "Index": 1},
        {"Verb": "check-index", "Key": none, "Index": 0},
        {"Verb": "check-session", "Key": key, "Session": mine},
        {"Verb": "check-session", "Key": none, "Session": mine},
        {"Verb": "check-not-exists", "Key": key},
        {"Verb": "get", "Key": none},
        {"Verb": "frobnicate", "Key": key},
    ) == list(
        enumerate(
            [
                f'failed to set key "{key}", index is stale',
                f'failed to set key "{key}", index is stale',
                f'failed to set key "{none}", index is stale',
                f'failed to delete key "{key}", index is stale',
                f'invalid session "{NOWHERE}"',
                "missing session",
                NO_UUID,
                f'failed to unlock key "{key}", lock isn\'t held, or is held by another session',
                f'failed index check for key "{key}", current modify index {index} != 1',
                f'failed to check index, key "{none}" doesn\'t exist',
                f'failed session check for key "{key}", current session "" != "{mine}"',
                f'failed to check session, key "{none}" doesn\'t exist',
                f'key "{key}" exists',
                f'key "{none}" doesn\'t exist',
                'unknown KV verb "frobnicate"',
            ]
        )
    )


async def test_check_index_and_check_session_pass_when_they_hold(face: Face) -> None:
    session = await face.session()
    key = face.key("lock")
    locked = await face.client.transaction([operations.lock(key, b"v", session)])
    results = await face.client.transaction(
        [
            operations.check_session(key, session),
            operations.check_index(key, locked[0].modify_index),
            operations.check_not_exists(face.key("none")),
            operations.put(face.key("a"), b"1"),
        ]
    )
    assert [entry.key for entry in results] == [key, key, face.key("a")]


async def test_an_empty_key_is_refused_before_anything_is_tried(face: Face) -> None:
    assert await refusals(
        face, {"Verb": "check-not-exists", "Key": "", "Value": b""}, {"Verb": "frob", "Key": face.key("a")}
    ) == [(0, "Must provide key")]


async def test_a_transaction_that_only_reads_answers_as_a_read(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    answer = await face.txn({"Verb": "get", "Key": face.key("a")})
    body = json_of(answer)
    assert {name: body[name] for name in ("Errors", "Index", "LastContact", "KnownLeader")} == {
        "Errors": None,
        "Index": told(0, 1),
        "LastContact": 0,
        "KnownLeader": True,
    }
    assert answer.headers["x-consul-knownleader"] == "true"
    assert "x-consul-index" not in answer.headers
    assert json_of(await face.raw("PUT", "/v1/txn", body=b"[]"))["Results"] == []
    for mode in ({"stale": ""}, {"consistent": ""}):
        assert (await face.raw("PUT", "/v1/txn", mode, b"[]")).status == 200
    assert (await face.raw("PUT", "/v1/txn", {"stale": "", "consistent": ""}, b"[]")).status == 400


async def operation_limit(face: Face) -> int:
    """Consul took 64 operations up to 1.13, 128 from 1.14 on."""
    major, minor = map(int, (await face.client.agent()).config.version.split(".")[:2])
    return 64 if (major, minor) < (1, 14) else 128


async def test_the_last_operation_that_fits_passes_and_one_more_is_413(face: Face) -> None:
    most = await operation_limit(face)
    assert most >= MAX_OPERATIONS
    steps = [operations.put(face.key(str(n)), b"x") for n in range(most + 1)]
    assert len(await face.client.transaction(steps[:-1])) == most
    with pytest.raises(TooLarge):
        await face.client.transaction(steps)
    answer = await face.raw("PUT", "/v1/txn", body=operations.encode(steps))
    text = f"Transaction contains too many operations ({most + 1} > {most})"
    assert (answer.status, answer.body.decode()) == (413, text)


async def test_the_operation_limit_and_version_of_the_embedded_server_are_parameters() -> None:
    async with faces.embedded_inprocess(limits=Limits(operations=128), version="1.14.0") as face:
        await test_the_last_operation_that_fits_passes_and_one_more_is_413(face)


async def test_a_transaction_body_has_a_limit_to_the_byte(face: Face) -> None:
    body = operations.encode([operations.put(face.key("big"), b"x" * 390_000)])
    fitting = body + b" " * (MAX_BODY_BYTES - len(body))
    assert (await face.raw("PUT", "/v1/txn", body=fitting)).status == 200
    answer = await face.raw("PUT", "/v1/txn", body=fitting + b" ")
    assert answer.status == 413
    assert answer.body.startswith(TOO_LARGE)


async def test_a_value_has_a_limit_to_the_byte(face: Face) -> None:
    assert await face.client.put(face.key("big"), b"x" * 524_288)
    with pytest.raises(TooLarge):
        await face.client.put(face.key("big"), b"x" * 524_289)
    answer = await face.raw("PUT", f"/v1/kv/{face.key('big')}", body=b"x" * 524_289)
    assert answer.body.startswith(TOO_LARGE)
    huge = await face.raw("PUT", f"/v1/kv/{face.key('big')}", body=b"x" * 1_040_000)
    assert huge.status == 413


def wire(**operation: Any) -> list[Any]:
    return [{"KV": {"Verb": "set", "Key": "never-written", **operation}}]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "EOF"),
        (b"{}", "json: cannot unmarshal object into Go value of type api.TxnOps"),
        (b"true", "json: cannot unmarshal bool into Go value of type api.TxnOps"),
        (b'"x"', "json: cannot unmarshal string into Go value of type api.TxnOps"),
        (b"[1]", "json: cannot unmarshal number into Go value of type api.TxnOp"),
        (b"x", "invalid character 'x' looking for beginning of value"),
        (b'[{"KV":{"Verb":"set",}}]', "invalid character '}' looking for beginning of object key string"),
        (b'[{"KV":{"Verb":"set"}}', "unexpected EOF"),
        (b'[{"KV":{"Verb":"se', "unexpected EOF"),
        ([{"KV": []}], "json: cannot unmarshal array into Go struct field TxnOp.KV of type api.KVTxnOp"),
        ([{"Other": {}}], 'json: unknown field "Other"'),
        (wire(Extra=1), 'json: unknown field "Extra"'),
        (wire(Key=5), "json: cannot unmarshal number into Go struct field KVTxnOp.KV.Key of type string"),
        (wire(Verb=5), "json: cannot unmarshal number into Go struct field KVTxnOp.KV.Verb of type api.KVOp"),
        (
            wire(Value=5),
            "json: cannot unmarshal number into Go struct field KVTxnOp.KV.Value of type []uint8",
        ),
        (wire(Value="!!"), "illegal base64 data at input byte 0"),
        (wire(Value="eA-_"), "illegal base64 data at input byte 2"),
        (wire(Value="eA"), "illegal base64 data at input byte 0"),
        (
            wire(Index="5"),
            "json: cannot unmarshal string into Go struct field KVTxnOp.KV.Index of type uint64",
        ),
        (
            wire(Index=-5),
            "json: cannot unmarshal number -5 into Go struct field KVTxnOp.KV.Index of type uint64",
        ),
        (
            wire(Flags=1.5),
            "json: cannot unmarshal number 1.5 into Go struct field KVTxnOp.KV.Flags of type uint64",
        ),
    ],
)
async def test_a_malformed_body_is_400_with_the_reason(face: Face, body: Any, complaint: str) -> None:
    answer = await face.raw("PUT", "/v1/txn", body=body)
    assert answer.status == 400
    assert answer.body.decode() == f"Failed to parse body: {complaint}"
    assert await face.client.read("never-written") is None


@pytest.mark.parametrize(
    "operation",
    [
        {"verb": "set", "KEY": "K", "value": "eA=="},
        {"Verb": "set", "Key": "K", "Value": "eA==\n"},
        {"Verb": "set", "Key": "K", "Value": "eA==", "Session": None, "Flags": None},
        {"Verb": "set", "Key": "K", "Value": "eA==", "Namespace": ""},
    ],
)
async def test_bodies_are_read_as_leniently_as_consul_reads_them(
    face: Face, operation: dict[str, Any]
) -> None:
    key = face.key("lenient")
    body = [{"Kv": {name: key if value == "K" else value for name, value in operation.items()}}]
    assert (await face.raw("PUT", "/v1/txn", body=body)).status == 200
    assert (await face.client.read(key)).value == b"x"  # type: ignore[union-attr]


async def test_what_follows_the_body_and_empty_operations_are_ignored(face: Face) -> None:
    text = f'[{{}}, {{"KV": {{"Verb": "set", "Key": "{face.key("a")}"}}}}] and more'
    assert (await face.raw("PUT", "/v1/txn", body=text)).status == 200
    assert await face.client.read(face.key("a")) is not None
    for nothing in (b"null", b'[{"KV":null}]'):
        assert (await face.raw("PUT", "/v1/txn", body=nothing)).status == 200


async def test_values_travel_as_base64(face: Face) -> None:
    value = bytes(range(256))
    answer = await face.txn({"Verb": "set", "Key": face.key("a"), "Value": base64.b64encode(value).decode()})
    assert answer.status == 200
    assert (await face.client.read(face.key("a"))).value == value  # type: ignore[union-attr]
