"""Finding, listing and changing replication controllers (p2 rcstore; W6, W11, W12)."""

from __future__ import annotations

import json
from typing import NoReturn

import msgspec
import pytest

from store.errors import Ambiguous, NotFound, RecordInvalid, TransactionRejected
from store.rcs import ReplicationController, ReplicationControllerStore
from tests.people import KEYS, person, snapshot


def record(rc_id: str, name: str, **fields: object) -> ReplicationController:
    return msgspec.convert(
        {"id": rc_id, "name": name, "manifest": "f" * 64, "replicas_desired": 2, **fields},
        ReplicationController,
    )


async def test_create_writes_record_and_name_or_neither() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record("ab12", "hello")))
        before = await snapshot(call)
        with pytest.raises(TransactionRejected):
            await call.client.transaction(store.create(record("cd34", "hello")))
        assert await snapshot(call) == before
        assert (await store.get("ab12")).record.name == "hello"


BILLING = "4f8be7be00000001"


async def test_a_change_takes_the_exact_name_or_the_whole_id() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record(BILLING, "billing")))
        assert (await store.find("billing")).record.id == BILLING
        assert (await store.find(BILLING)).record.id == BILLING
        for begins in ("4", "4f", "4f8be7b"):
            for way in (store.find, store.look):
                with pytest.raises(NotFound) as refused:
                    await way(begins)
                assert "hint" not in refused.value.fields
        with pytest.raises(NotFound) as refused:
            await store.find("4f8be7be")
        assert "4f8be7be is a prefix of the id of rc/billing" in refused.value.fields["hint"]


async def test_eight_digits_of_an_id_find_a_record_to_read_and_a_name_wins() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record(BILLING, "billing")))
        assert (await store.look("4f8be7be")).record.id == BILLING
        await call.client.transaction(store.create(record("cd34", "4f8be7be")))
        assert (await store.look("4f8be7be")).record.id == "cd34"


async def test_a_beginning_that_fits_several_ids_is_ambiguous_and_names_them() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record(BILLING, "first")))
        await call.client.transaction(store.create(record("4f8be7be00000002", "second")))
        with pytest.raises(Ambiguous, match="4f8be7be00000001, 4f8be7be00000002"):
            await store.look("4f8be7be")
        with pytest.raises(NotFound):
            await store.find("4f8be7be")


@pytest.mark.parametrize("text", ["", "nope", "a/b", "../meta/cluster", ".present"])
async def test_what_does_not_exist_is_not_found(text: str) -> None:
    async with person() as call:
        with pytest.raises(NotFound):
            await ReplicationControllerStore(call.client, KEYS).find(text)


async def test_one_corrupt_record_is_reported_and_hides_none() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record("ab12", "b")))
        await call.client.transaction(store.create(record("cd34", "a")))
        await call.client.put(KEYS.record("rcs", "ee00"), b'{"id": "ee00", "name": "x", "manifest": "m"}')
        listing = await store.list()
        assert [stored.record.name for stored in listing.items] == ["a", "b"]
        assert len(listing.broken) == 1
        assert "replicas_desired" in listing.broken[0].message
        with pytest.raises(RecordInvalid):
            await store.get("ee00")


async def test_replace_is_refused_after_somebody_elses_change() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record("ab12", "hello")))
        mine, theirs = await store.get("ab12"), await store.get("ab12")
        await call.client.transaction(
            [store.replace(theirs, msgspec.structs.replace(theirs.record, disabled=True))]
        )
        with pytest.raises(TransactionRejected):
            await call.client.transaction(
                [store.replace(mine, msgspec.structs.replace(mine.record, replicas_desired=9))]
            )
        assert (await store.get("ab12")).record.replicas_desired == 2


async def test_delete_takes_record_name_status_and_work_together() -> None:
    async with person() as call:
        empty = await snapshot(call)
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.transaction(store.create(record("ab12", "hello")))
        await call.client.put(KEYS.status("rcs", "ab12"), b"{}")
        await call.client.put(KEYS.work("rcs", "ab12"), b"{}")
        await call.client.transaction(store.delete(await store.get("ab12")))
        assert await snapshot(call) == empty


async def test_a_name_without_its_record_can_be_taken_over() -> None:
    async with person() as call:
        store = ReplicationControllerStore(call.client, KEYS)
        await call.client.put(KEYS.name("rcs", "hello"), json.dumps("gone").encode())
        stored, index = await store.named("hello")
        assert stored is None
        assert index > 0
        await call.client.transaction(store.create(record("ab12", "hello"), name_index=index))
        assert (await store.find("hello")).record.id == "ab12"


@pytest.mark.parametrize("text", [".", "..", "../../meta/cluster", ""])
async def test_a_text_that_is_no_part_of_a_key_names_nothing_and_is_asked_of_nobody(text: str) -> None:
    class Nobody:
        def __getattr__(self, name: str) -> NoReturn:
            raise AssertionError(f"asked: {name}")

    store = ReplicationControllerStore(Nobody(), KEYS)  # type: ignore[arg-type]
    for ask in (store.find, store.look):
        with pytest.raises(NotFound):
            await ask(text)
