"""Config keys: each change is one transaction with its version and its audit record."""

from __future__ import annotations

import pytest

from farmd.commands import config_keys
from farmd.commands.mutation import Call, commit
from store import config
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, NotFound
from tests.people import person, snapshot


async def put(call: Call, path: str, value: str) -> None:
    await commit(call, await config_keys.set_value(call, path, value))


async def test_a_value_its_version_and_its_audit_record_share_one_index_and_the_audit_has_no_value() -> None:
    async with person(reason="new database") as call:
        await put(call, "config/shop/db_url", "postgres://canary")
        entry = await call.client.read("farmd/config/shop/db_url")
        assert entry is not None
        assert entry.value == b"postgres://canary"
        (row,), broken = await config_keys.history(call, "shop/db_url")
        assert (row.version, row.by, row.reason, row.state) == (
            entry.modify_index,
            "user/ada@desk",
            "new database",
            "current",
        )
        assert not broken
        (record,) = await AuditReader(call.client, call.keys).read(Filter(kind="config"), 10)
        assert (record.action, record.name, record.after["bytes"]) == ("config.set", "shop/db_url", 17)
        assert "canary" not in str(record)


async def test_the_same_value_again_writes_nothing() -> None:
    async with person() as call:
        await put(call, "shop/db_url", "a")
        before = await snapshot(call)
        await put(call, "shop/db_url", "a")
        assert await snapshot(call) == before


async def test_ten_versions_are_kept_through_deletion_and_each_can_be_read() -> None:
    async with person() as call:
        for number in range(14):
            await put(call, "a", str(number))
        await put(call, "a/b", "beside")
        await commit(call, await config_keys.delete(call, "a"))
        rows, _ = await config_keys.history(call, "a")
        assert [row.state for row in rows] == ["deleted"] + ["old"] * 9
        old = [await config.value_at(call.client, call.keys, "a", row.version) for row in rows[1:]]
        assert old == [str(number) for number in range(13, 4, -1)]
        with pytest.raises(NotFound, match="config/a does not exist"):
            await config.value_at(call.client, call.keys, "a", 0)
        await put(call, "a", "again")
        assert (await config_keys.history(call, "a"))[0][0].state == "current"
        assert [row.key for row in await config_keys.rows(call)] == ["a", "a/b"]


@pytest.mark.parametrize("deletes", [False, True])
async def test_of_two_changes_at_once_one_is_refused_and_leaves_nothing(deletes: bool) -> None:
    async with person() as call:
        await put(call, "a", "1")
        late = await (config_keys.delete(call, "a") if deletes else config_keys.set_value(call, "a", "late"))
        await put(call, "a", "2")
        before = await snapshot(call)
        with pytest.raises(Conflict, match="config/a changed since it was read"):
            await commit(call, late)
        assert await snapshot(call) == before


async def test_a_value_that_somebody_put_by_hand_is_a_version_without_an_author() -> None:
    async with person() as call:
        await call.client.put("farmd/config/a", b"by hand")
        (row,), _ = await config_keys.history(call, "a")
        assert (row.by, row.state) == ("", "current")
        assert await config.value_at(call.client, call.keys, "a", row.version) == "by hand"


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/..b", "a b", "a" * 201, "x/.present"])
async def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match="key: found"):
            await config_keys.set_value(call, path, "x")


@pytest.mark.parametrize("value", ["x" * (64 * 1024 + 1), "a\0b"])
async def test_a_value_that_cannot_be_is_refused(value: str) -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match="value: found"):
            await config_keys.set_value(call, "a", value)


async def test_the_largest_value_fits_with_its_version() -> None:
    async with person() as call:
        await put(call, "a", "\n" * (64 * 1024))
        await put(call, "a", '"' * (64 * 1024))
