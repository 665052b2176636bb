"""Server-side apply on a real API server: whose the fields are, and what a stale apply may not do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import Conflict, FieldsTaken, Invalid
from farmd.kubernetes.objects import ManagedMeta, Resource, managers_of
from farmd.kubernetes.store import ObjectStore
from tests.kubernetes.test_watches import informed

pytestmark = pytest.mark.xdist_group("kubernetes")
MAPS = Resource("", "v1", "configmaps", "ConfigMap")
MINE, OTHER = "mine", "another"


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ManagedMeta
    data: dict[str, str] = {}


@pytest.fixture
async def maps(api, connect):
    """Config maps, and the store that learns of own writes."""
    async with connect(api) as admin:
        yield Objects(admin, MAPS, ConfigMap, "other", lambda: 30.0, ObjectStore())


def made(api, namespace: str, **data: str) -> dict[str, Any]:
    """The metadata of a new config map of someone else."""
    return api.ask("POST", MAPS.path(namespace), {"metadata": {"name": "a"}, "data": data})["metadata"]


def there(api, namespace: str) -> dict[str, str]:
    return api.ask("GET", MAPS.path(namespace, "a")).get("data", {})


async def test_an_applied_field_that_is_left_out_later_is_removed_and_others_stay(api, namespace, maps):
    made(api, namespace, theirs="1")
    await maps.apply(namespace, "a", {"data": {"x": "1", "y": "1"}}, manager=MINE)
    found = await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE)
    assert found.data == there(api, namespace) == {"theirs": "1", "x": "2"}
    version = found.metadata.resource_version
    assert maps._store.get(namespace, "a").metadata.resource_version == version
    again = await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE)
    assert again.metadata.resource_version == version


async def test_a_field_of_another_manager_is_taken_by_force_alone(api, namespace, maps):
    await maps.apply(namespace, "a", {"data": {"x": "1"}}, manager=OTHER)
    with pytest.raises(FieldsTaken) as refused:
        await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE)
    assert dict(refused.value.causes) == {".data.x": 'conflict with "another"'}
    assert there(api, namespace) == {"x": "1"}
    found = await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE, force=True)
    assert [each.manager for each in managers_of(found.metadata, "data", "x")] == [MINE]


async def test_an_apply_for_another_version_or_another_object_changes_nothing(api, namespace, maps):
    meta = made(api, namespace, x="1")
    uid, version = meta["uid"], meta["resourceVersion"]
    stale = ({"uid": uid, "version": "1"}, {"uid": "other", "version": version}, {"uid": "other"})
    for wrong in stale:
        with pytest.raises(Conflict):
            await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE, force=True, **wrong)
    assert there(api, namespace) == {"x": "1"}
    right = {"uid": uid, "version": version}
    await maps.apply(namespace, "a", {"data": {"x": "2"}}, manager=MINE, force=True, **right)
    assert there(api, namespace) == {"x": "2"}
    with pytest.raises(Conflict):
        await maps.apply(namespace, "gone", {"data": {"x": "2"}}, manager=MINE, **right)


async def test_an_object_that_is_not_acceptable_is_no_conflict(namespace, maps):
    with pytest.raises(Invalid):
        await maps.apply(namespace, "a", {"data": {"no key": "1"}}, manager=MINE)


async def test_a_dry_run_tells_the_object_and_writes_nothing(api, namespace, maps):
    made(api, namespace, x="1")
    found = await maps.apply(namespace, "a", {"data": {"y": "2"}}, manager=MINE, dry_run=True)
    assert found.data == {"x": "1", "y": "2"}
    assert there(api, namespace) == {"x": "1"}
    assert maps._store.get(namespace, "a") is None


async def test_a_watch_keeps_the_managers_of_fields_where_its_struct_asks(api, namespace, connect, maps):
    made(api, namespace, x="1")
    await maps.apply(namespace, "a", {"data": {"y": "1"}}, manager=MINE)
    async with connect(api) as admin, informed(admin, namespace, kind=ConfigMap, of=MAPS) as (informer, _):
        meta = informer.store.get(namespace, "a").metadata
        by = [(each.manager, each.operation) for each in managers_of(meta, "data", "y")]
        assert by == [(MINE, "Apply")]
        assert not list(managers_of(meta, "spec", "traffic"))
    async with connect(api) as admin, informed(admin, namespace, of=MAPS) as (informer, _):
        assert not hasattr(informer.store.get(namespace, "a").metadata, "managed_fields")
