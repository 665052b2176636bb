"""R40: a secret is sealed to the recipients that its group has then, and its newest versions are kept."""

from __future__ import annotations

import pytest

from farmd.commands import sealing, secret_views
from farmd.commands.mutation import Call, commit
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid
from store.secrets import MOST_RECIPIENTS, MOST_VERSIONS
from tests.people import person


async def grouped(call: Call) -> str:
    _, recipient = sealing.keygen()
    await commit(call, await sealing.create_group(call, "prod", [recipient]))
    return recipient


async def test_the_newest_versions_are_kept_and_numbers_never_come_again() -> None:
    async with person() as call:
        await grouped(call)
        for number in range(MOST_VERSIONS + 3):
            await commit(call, await sealing.set_value(call, "a", b"%d" % number, "prod"))
        rows, broken = await secret_views.history(call, "a")
        assert [row.version for row in rows] == list(range(MOST_VERSIONS + 3, 3, -1))
        assert broken == []
        await commit(call, await sealing.delete(call, "a"))
        await commit(call, await sealing.set_value(call, "a", b"x", "prod"))
        rows, _ = await secret_views.history(call, "a")
        assert [(row.version, row.state) for row in rows] == [(15, "current"), (14, "deleted")]


async def test_a_group_that_changes_meanwhile_refuses_the_write_and_so_does_another_version() -> None:
    async with person() as call:
        first = await grouped(call)
        _, second = sealing.keygen()
        late = await sealing.set_value(call, "a", b"x", "prod")
        await commit(call, await sealing.change_group(call, "prod", [second], [first]))
        with pytest.raises(Conflict):
            await commit(call, late)
        one, other = [await sealing.set_value(call, "a", value, "prod") for value in (b"one", b"other")]
        await commit(call, one)
        with pytest.raises(Conflict):
            await commit(call, other)
        (row,), _ = await secret_views.history(call, "a")
        assert (row.recipients, row.stale) == (1, 0)


async def test_the_audit_tells_of_equal_values_as_of_any_others() -> None:
    async with person() as call:
        await grouped(call)
        for _ in range(2):
            await commit(call, await sealing.set_value(call, "a", b"same", "prod"))
        records = await AuditReader(call.client, call.keys).read(Filter(kind="secrets"), 10)
        told = [record.after for record in records]
        assert told == [{"version": n, "group": "prod", "recipients": 1} for n in (2, 1)]


async def test_a_group_has_so_many_recipients_and_at_least_one() -> None:
    async with person() as call:
        own = await grouped(call)
        many = [sealing.keygen()[1] for _ in range(MOST_RECIPIENTS)]
        with pytest.raises(InputInvalid, match="65 recipients"):
            await sealing.change_group(call, "prod", many, [])
        with pytest.raises(InputInvalid, match="0 recipients"):
            await sealing.change_group(call, "prod", [], [own])
