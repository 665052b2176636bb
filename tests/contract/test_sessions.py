"""Sessions, locks and lock-delay (R1–R6, and what R12's fences rest on)."""

from __future__ import annotations

from typing import Any

import pytest

from store import operations
from store.errors import InvalidTTL, SessionGone, TransactionRejected
from tests.contract.faces import NO_UUID, Face, json_of, told

NOWHERE = "11111111-2222-3333-4444-555555555555"
SECOND = 1_000_000_000
FIELD = told("", ".Alias")
APPLIED = told("", "apply failed: ")
RAFT = told("", "raft apply failed: ")


async def info(face: Face, session: str) -> dict[str, Any]:
    return json_of(await face.raw("GET", f"/v1/session/info/{session}"))[0]  # type: ignore[no-any-return]


async def test_a_session_is_what_was_asked_for(face: Face) -> None:
    session = await face.session(Name="farm-1", LockDelay="2s", TTL="1m30s")
    node = (await face.client.agent()).config.node_name
    found = await info(face, session)
    assert found["CreateIndex"] == found["ModifyIndex"] > 0
    assert {name: found[name] for name in found if not name.endswith("Index")} == {
        "ID": session,
        "Name": "farm-1",
        "Node": node,
        "LockDelay": 2 * SECOND,
        "Behavior": "delete",
        "TTL": "1m30s",
        "NodeChecks": [],
        "ServiceChecks": None,
    }
    by_node = json_of(await face.raw("GET", f"/v1/session/node/{node}"))
    assert found in by_node
    assert found in json_of(await face.raw("GET", "/v1/session/list"))
    assert json_of(await face.raw("GET", "/v1/session/node/nobody")) == []


async def test_a_session_without_a_body_has_consuls_defaults(face: Face) -> None:
    session = json_of(await face.raw("PUT", "/v1/session/create"))["ID"]
    found = await info(face, session)
    assert (found["LockDelay"], found["Behavior"], found["TTL"]) == (15 * SECOND, "release", "")
    assert found["NodeChecks"] == ["serfHealth"]
    await face.client.destroy_session(session)


async def test_the_client_makes_sessions_that_no_check_can_end(face: Face) -> None:
    session = await face.client.create_session(name="n", ttl=10)
    found = await face.client.session_info(session)
    assert found is not None
    raw = await info(face, session)
    assert (raw["NodeChecks"], raw["LockDelay"], raw["Behavior"]) == ([], SECOND // 1000, "delete")
    await face.client.destroy_session(session)
    assert await face.client.session_info(session) is None


@pytest.mark.parametrize("ttl", [9, 86_401])
async def test_a_ttl_out_of_range_is_refused(face: Face, ttl: int) -> None:
    with pytest.raises(InvalidTTL):
        await face.client.create_session(name="n", ttl=ttl)
    answer = await face.raw("PUT", "/v1/session/create", body={"TTL": f"{ttl}s"})
    assert answer.status == 500
    assert answer.body.decode() == f"Invalid Session TTL '{ttl * SECOND}', must be between [10s=24h0m0s]"


@pytest.mark.parametrize(
    ("given", "stored"),
    [(0, 0), ("0s", 0), (5, 5 * SECOND), (999, 999 * SECOND), (1000, 1000), ("1ms", SECOND // 1000),
     ("15s", 15 * SECOND), ("61s", 61 * SECOND), ("500ns", 500 * SECOND),
     (None, 15 * SECOND), (-5, -5 * SECOND)],
)  # fmt: skip
async def test_a_lock_delay_is_stored_as_consul_reads_it(face: Face, given: object, stored: int) -> None:
    session = await face.session(LockDelay=given)
    assert (await info(face, session))["LockDelay"] == stored
    await face.client.destroy_session(session)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("{", 400, "Request decode failed: unexpected EOF"),
        ("x", 400, "Request decode failed: invalid character 'x' looking for beginning of value"),
        (
            "[]",
            400,
            "Request decode failed: json: cannot unmarshal array into Go value of type "
            "struct { LockDelay interface {}; *structs.Alias }",
        ),
        (
            {"TTL": 10},
            400,
            f"Request decode failed: json: cannot unmarshal number into Go struct field {FIELD}.TTL "
            "of type string",
        ),
        (
            {"Checks": "x"},
            400,
            f"Request decode failed: json: cannot unmarshal string into Go struct field {FIELD}.Checks "
            "of type []types.CheckID",
        ),
        ({"LockDelay": "x"}, 400, 'Request decode failed: time: invalid duration "x"'),
        ({"LockDelay": "15"}, 400, 'Request decode failed: time: missing unit in duration "15"'),
        ({"TTL": "x"}, 500, "Session TTL 'x' invalid: time: invalid duration \"x\""),
        ({"Behavior": "x"}, 500, "Invalid Behavior setting 'x'"),
        ({"Node": ""}, 500, "Must provide Node"),
        ({"Node": "nobody"}, 500, f"{APPLIED}Missing node registration"),
        ({"Checks": ["x"]}, 500, f"{APPLIED}Missing check 'x' registration"),
        ({"ServiceChecks": [{"ID": "x"}]}, 500, f"{APPLIED}Missing check 'x' registration"),
    ],
)
async def test_a_session_that_cannot_be_is_refused_with_the_reason(
    face: Face, body: Any, status: int, text: str
) -> None:
    answer = await face.raw("PUT", "/v1/session/create", body=body)
    assert (answer.status, answer.body.decode()) == (status, text)


async def test_session_bodies_are_read_leniently(face: Face) -> None:
    for body in ('{"ttl":"10s","Unknown":1} and more', "null"):
        session = json_of(await face.raw("PUT", "/v1/session/create", body=body))["ID"]
        await face.client.destroy_session(session)


@pytest.mark.parametrize("verb", ["info", "renew", "destroy"])
async def test_ids_that_are_none_and_ids_of_nobody(face: Face, verb: str) -> None:
    method = "GET" if verb == "info" else "PUT"
    empty = await face.raw(method, f"/v1/session/{verb}/")
    assert (empty.status, empty.body) == (400, b"Missing session")
    nobody = await face.raw(method, f"/v1/session/{verb}/{NOWHERE}")
    broken = await face.raw(method, f"/v1/session/{verb}/abc")
    of_nobody = (nobody.status, nobody.body.replace(NOWHERE.encode(), b"abc"))
    no_uuid = (500, b"failed session lookup: index error: UUID must be 36 characters")
    assert (broken.status, broken.body) in (no_uuid, of_nobody)
    expected = {
        "info": (200, b"[]"),
        "renew": (404, f"Session id '{NOWHERE}' not found".encode()),
        "destroy": (200, b"true"),
    }
    assert (nobody.status, nobody.body.strip()) == expected[verb]


async def test_renewing_a_destroyed_session_says_gone(face: Face) -> None:
    session = await face.session()
    await face.client.renew_session(session)
    await face.client.destroy_session(session)
    with pytest.raises(SessionGone):
        await face.client.renew_session(session)


# Locks


async def test_a_lock_is_held_by_one(face: Face) -> None:
    mine, other = await face.session(), await face.session()
    key = face.key("lock")
    assert await face.client.put(key, b"mine", acquire=mine)
    assert not await face.client.put(key, b"other", acquire=other)
    entry = await face.client.read(key)
    assert entry is not None
    assert (entry.session, entry.value, entry.lock_index) == (mine, b"mine", 1)


async def test_the_same_session_locks_twice(face: Face) -> None:
    mine = await face.session()
    key = face.key("lock")
    await face.client.put(key, b"1", acquire=mine)
    index = (await face.client.get(key))[0]
    assert await face.client.put(key, b"1", acquire=mine)
    assert (await face.client.get(key))[0] == index
    assert await face.client.put(key, b"2", acquire=mine)
    entry = await face.client.read(key)
    assert entry is not None
    assert (entry.lock_index, entry.modify_index > index) == (1, True)
    await face.client.transaction([operations.lock(key, b"3", mine)])
    with pytest.raises(TransactionRejected):  # R3
        await face.client.transaction([operations.check_not_exists(key), operations.lock(key, b"4", mine)])


async def test_lock_index_counts_owners_unless_the_key_goes(face: Face) -> None:
    key = face.key("lock")
    counts = []
    for _ in range(3):
        session = await face.session()
        await face.client.put(key, b"v", acquire=session)
        counts.append((await face.client.read(key)).lock_index)  # type: ignore[union-attr]
        await face.client.put(key, b"v", release=session)
    assert counts == [1, 2, 3]
    counts = []
    for _ in range(3):
        session = await face.session(Behavior="delete", LockDelay="0s")
        await face.client.put(face.key("gone"), b"v", acquire=session)
        counts.append((await face.client.read(face.key("gone"))).lock_index)  # type: ignore[union-attr]
        await face.client.destroy_session(session)
    assert counts == [1, 1, 1]


async def test_a_plain_write_keeps_the_holder_and_loses_the_count(face: Face) -> None:
    mine = await face.session()
    key = face.key("lock")
    await face.client.put(key, b"1", acquire=mine)
    await face.client.put(key, b"2")
    entry = await face.client.read(key)
    assert entry is not None
    assert (entry.session, entry.lock_index, entry.value) == (mine, 0, b"2")


async def test_only_the_holder_releases(face: Face) -> None:
    mine, other = await face.session(), await face.session()
    key = face.key("lock")
    assert not await face.client.put(key, b"x", release=mine)
    await face.client.put(key, b"1", acquire=mine)
    assert not await face.client.put(key, b"x", release=other)
    assert await face.client.put(key, b"2", release=mine)
    entry = await face.client.read(key)
    assert entry is not None
    assert (entry.session, entry.value) == ("", b"2")
    assert not await face.client.put(key, b"x", release=mine)


@pytest.mark.parametrize(
    ("params", "status", "text"),
    [
        ({"acquire": NOWHERE}, 500, f'{RAFT}invalid session "{NOWHERE}"'),
        ({"acquire": "abc"}, 500, RAFT + NO_UUID),
        ({"acquire": ""}, 500, f"{RAFT}missing session"),
        ({"release": ""}, 500, f"{RAFT}missing session"),
        ({"release": NOWHERE}, 200, "false"),
    ],
)
async def test_locking_for_nobody(face: Face, params: dict[str, str], status: int, text: str) -> None:
    answer = await face.raw("PUT", f"/v1/kv/{face.key('lock')}", params, b"x")
    assert (answer.status, answer.body.decode().strip()) == (status, text)


async def test_acquiring_with_a_lost_session_says_gone(face: Face) -> None:
    session = await face.session()
    await face.client.destroy_session(session)
    with pytest.raises(SessionGone):
        await face.client.put(face.key("lock"), b"x", acquire=session)


@pytest.mark.parametrize("behavior", ["delete", "release"])
async def test_destroying_a_session_frees_all_its_locks_at_once(face: Face, behavior: str) -> None:
    mine, other = await face.session(Behavior=behavior, LockDelay="0s"), await face.session()
    for name in "abc":
        await face.client.put(face.key(name), b"mine", acquire=mine)
    await face.client.put(face.key("d"), b"other", acquire=other)
    await face.client.destroy_session(mine)
    left = {item.key: item for item in (await face.client.list(face.prefix)).items}
    assert left[face.key("d")].session == other
    if behavior == "delete":
        assert list(left) == [face.key("d")]
    else:
        freed = [left[face.key(name)] for name in "abc"]
        assert [(item.session, item.decoded()) for item in freed] == [("", b"mine")] * 3
        assert len({item.modify_index for item in freed}) == 1


# Lock-delay. A minute stands for "longer than this test", 0 s and a release for "none".


async def test_a_lock_delay_follows_destruction(face: Face) -> None:
    mine, other = await face.session(LockDelay="60s"), await face.session()
    key = face.key("lock")
    await face.client.put(key, b"1", acquire=mine)
    await face.client.destroy_session(mine)
    assert await face.client.read(key) is None
    assert not await face.client.put(key, b"2", acquire=other)
    with pytest.raises(TransactionRejected, match="due to lock delay"):
        await face.client.transaction([operations.lock(key, b"2", other)])
    # Neither a plain write nor a deletion ends it.
    await face.client.put(key, b"3")
    await face.client.delete(key)
    assert not await face.client.put(key, b"2", acquire=other)


async def test_a_refusal_for_lock_delay_names_the_operation_alone(face: Face) -> None:
    mine, other = await face.session(LockDelay="60s"), await face.session()
    key = face.key("lock")
    await face.client.put(key, b"1", acquire=mine)
    await face.client.destroy_session(mine)
    answer = await face.txn(
        {"Verb": "check-not-exists", "Key": key},
        {"Verb": "lock", "Key": key, "Session": other},
        {"Verb": "check-index", "Key": key, "Index": 3},
    )
    text = f'failed to lock key "{key}" due to lock delay'
    assert json_of(answer)["Errors"] == [{"OpIndex": 1, "What": text}]


@pytest.mark.parametrize("freed_by", ["release", "delete", "transaction"])
async def test_no_lock_delay_follows_what_its_holder_gave_up(face: Face, freed_by: str) -> None:
    mine, other = await face.session(LockDelay="60s"), await face.session(LockDelay="60s")
    key = face.key("lock")
    await face.client.put(key, b"1", acquire=mine)
    match freed_by:
        case "release":
            assert await face.client.put(key, b"1", release=mine)
        case "delete":
            await face.client.delete(key)
        case "transaction":  # R9: a lock changes hands without a gap
            await face.client.transaction([operations.delete(key), operations.lock(key, b"2", other)])
    assert await face.client.put(key, b"2", acquire=other)
    assert (await face.client.read(key)).session == other  # type: ignore[union-attr]


async def test_no_lock_delay_where_it_is_zero(face: Face) -> None:
    mine, other = await face.session(LockDelay="0s"), await face.session()
    await face.client.put(face.key("lock"), b"1", acquire=mine)
    await face.client.destroy_session(mine)
    assert await face.client.put(face.key("lock"), b"2", acquire=other)


async def test_a_lock_delay_ends(face: Face) -> None:
    """R5: 1 ms is what farms use; nobody is woken at its end."""
    mine, other = await face.session(LockDelay="1ms"), await face.session()
    await face.client.put(face.key("lock"), b"1", acquire=mine)
    await face.client.destroy_session(mine)
    await face.elapse(0.002)
    assert await face.client.put(face.key("lock"), b"2", acquire=other)
