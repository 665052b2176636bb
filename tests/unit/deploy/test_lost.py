"""Whose pods a deployment may take back when the record of their service is gone."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.deploy import scene
from store import codec
from store.daemonsets import DaemonSet
from store.rcs import ReplicationController
from store.services import Service, Version
from tests.people import KEYS, person

SHA = "a" * 64
OWNER = {"id": "0b", "name": "svc-web", "manifest": SHA, "part_of": "services/0a"}


async def found(owner: ReplicationController | DaemonSet, **service: Any) -> dict[str, Service]:
    """The services named web by what stands; ``service``: the fields of the one that is there."""
    family = "rcs" if isinstance(owner, ReplicationController) else "daemonsets"
    async with person() as call:
        await call.client.put(KEYS.record(family, owner.id), codec.encode(owner))
        await call.client.put(KEYS.name(family, owner.name), codec.encode(owner.id))
        if service:
            record = Service(**service)
            await call.client.put(KEYS.record("services", record.id), codec.encode(record))
        known = await scene.services(call, {"web"}, "shop")
        return {name: stored.record for name, stored in known.items()}


async def test_the_owner_that_bears_the_mark_tells_what_its_service_was() -> None:
    rc = ReplicationController(**OWNER, replicas_desired=3, replicas_per_node=2, on_lost="wait")
    version = Version(manifest=SHA, replicas=3, max_per_node=2, on_lost="wait")
    expected = Service(
        id="0a", name="web", project="shop", mode="replicated", active=["rcs/0b"], version=version
    )
    assert await found(rc) == {"web": expected}
    everywhere = (await found(DaemonSet(**OWNER)))["web"]
    assert (everywhere.mode, everywhere.active) == ("global", ["daemonsets/0b"])


@pytest.mark.parametrize("fields", [{"part_of": ""}, {"part_of": "apps/web"}, {"deleting": True}])
async def test_an_owner_without_the_mark_is_another_ones(fields: dict[str, Any]) -> None:
    assert await found(ReplicationController(**OWNER | fields, replicas_desired=1)) == {}


async def test_an_owner_whose_service_exists_is_that_ones() -> None:
    assert await found(ReplicationController(**OWNER, replicas_desired=1), id="0a", name="another") == {}
