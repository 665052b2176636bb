"""Services: found by name, changed with the owners that they name, and never by a guess."""

from __future__ import annotations

import pytest

from store import codec, families
from store.errors import TransactionRejected
from store.families import SERVICES
from store.registration import Schema, register_cluster, sentinel_value
from store.services import Service, ServiceStore, naming, reference
from tests.people import KEYS, CountedIds, person

WEB = Service(id="ab12", name="web", port="http", active=[reference("rcs", "00aa")])


async def test_r14_a_service_names_other_owners_only_if_it_is_as_it_was_read() -> None:
    async with person() as call:
        store = ServiceStore(call.client, KEYS)
        await call.client.transaction(store.create(WEB))
        read = await store.find("web")
        await call.client.transaction([store.activate(read, ["rcs/00aa", "rcs/00bb"])])
        assert (await store.find("web")).record.active == ["rcs/00aa", "rcs/00bb"]
        for late in (["rcs/00bb"], read.record.active):
            with pytest.raises(TransactionRejected):
                await call.client.transaction([store.activate(read, late)])


async def test_a_service_keeps_the_fields_of_newer_versions() -> None:
    async with person() as call:
        store = ServiceStore(call.client, KEYS)
        await call.client.transaction(store.create(WEB))
        newer = {"id": "ab12", "name": "web", "port": "http", "active": ["rcs/00aa"], "project": "shop"}
        await call.client.put(KEYS.record("services", "ab12"), codec.encode(newer))
        await call.client.transaction([store.activate(await store.find("web"), [])])
        assert b'"project":"shop"' in (await store.find("web")).raw


async def test_services_that_name_an_owner_are_found_beside_one_that_does_not_decode() -> None:
    async with person() as call:
        store = ServiceStore(call.client, KEYS)
        await call.client.transaction(store.create(WEB))
        await call.client.put(KEYS.record("services", "cd34"), b"{")
        assert [each.record.name for each in naming(await store.list(), "rcs/00bb", "rcs/00aa")] == ["web"]
        assert not naming(await store.list(), "rcs/00bb")


async def test_r20_a_cluster_of_an_earlier_version_gets_the_sentinel_of_services() -> None:
    async with person(registered=False) as call:
        await call.client.put(KEYS.cluster, codec.encode("c1"))
        known = [family.name for family in families.younger() if family is not SERVICES]
        await call.client.put(KEYS.schema, codec.encode(Schema(1, 1, families=known)))
        await register_cluster(call.client, KEYS, CountedIds())
        entry = await call.client.read(KEYS.schema)
        assert entry is not None
        assert set(codec.decode(Schema, entry.value, "").families) == {*known, SERVICES.name}
        (sentinel,) = families.sentinels(KEYS, [SERVICES])
        assert await call.client.read(sentinel) is not None
        assert await call.client.read(KEYS.sentinel(KEYS.tree("rollouts"))) is None  # named: permits nothing


async def test_r20_a_sentinel_that_a_person_created_keeps_no_family_from_being_registered() -> None:
    """An earlier doctor offered to create the sentinel of a family that no farm knew yet."""
    async with person(registered=False) as call:
        await call.client.put(KEYS.cluster, codec.encode("c1"))
        await call.client.put(KEYS.schema, codec.encode(Schema(1, 1)))
        (sentinel,) = families.sentinels(KEYS, [SERVICES])
        await call.client.put(sentinel, sentinel_value("c1"))
        await register_cluster(call.client, KEYS, CountedIds())
        entry = await call.client.read(KEYS.schema)
        assert entry is not None
        names = [family.name for family in families.younger()]
        assert codec.decode(Schema, entry.value, "").families == names
        for key in families.sentinels(KEYS, families.younger()):
            assert await call.client.read(key) is not None
