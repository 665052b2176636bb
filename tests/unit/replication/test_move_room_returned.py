"""W16: deleting a controller gives back the room that a move of its has reserved, in the same transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from store import codec
from store.audit import AuditReader, Filter
from store.errors import Conflict
from store.reality import Intent
from store.work import Transfer, Work
from tests.people import KEYS, created, person

# What versions wrote that made room for others; it stays, and means nothing.
OLDER = {
    "nominations": {"db": {"owner": "other", "priority": 80, "amounts": {"cpu": 1.0}}},
    "priorities": {"db": 20},
}


async def move(call: Call) -> str:
    """A controller whose move has reserved ``n1/db`` and placed nothing."""
    rc_id = await created(call, replicas=0)
    transfer = Transfer(id="t", old_node="n9", old_instance="x", new_node="n1", new_instance="db")
    await call.client.put(KEYS.work("rcs", rc_id), codec.encode(Work(transfer=transfer)))
    book = {"instances": {"db": {"cpu": 1.0}, "cache": {"cpu": 1.0}}, **OLDER}
    await call.client.put(KEYS.reserved("n1"), json.dumps(book).encode())
    return rc_id


async def reserved(call: Call) -> Any:
    entry = await call.client.read(KEYS.reserved("n1"))
    assert entry is not None
    return json.loads(entry.value)


async def test_w16_the_room_of_a_move_goes_with_its_controller() -> None:
    async with person() as call:
        rc_id = await move(call)
        await commit(call, await RC.delete(call, "hello", cascade=False))
        assert await reserved(call) == {"instances": {"cache": {"cpu": 1.0}}, "generation": 1, **OLDER}
        assert await call.client.read(KEYS.work("rcs", rc_id)) is None
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(action="rc.delete"), 9)
        assert (audit.before["reservations"], audit.after["reservations"]) == (1, 0)


async def test_w16_deleting_writes_over_no_record_that_changed_meanwhile() -> None:
    async with person() as call:
        await move(call)
        mutation = await RC.delete(call, "hello", cascade=False)
        changed = {"instances": {"db": {"cpu": 2.0}}}
        await call.client.put(KEYS.reserved("n1"), json.dumps(changed).encode())
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await reserved(call) == changed


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_w16_room_at_the_place_of_a_move_that_is_somebodys_by_now_is_left_alone(when: str) -> None:
    async with person() as call:
        await move(call)
        theirs = codec.encode(Intent("0" * 64, "other"))
        if when == "before":
            await call.client.put(KEYS.intent("n1", "db"), theirs)
        mutation = await RC.delete(call, "hello", cascade=False)
        if when == "before":
            await commit(call, mutation)
        else:
            await call.client.put(KEYS.intent("n1", "db"), theirs)
            with pytest.raises(Conflict):
                await commit(call, mutation)
        assert sorted((await reserved(call))["instances"]) == ["cache", "db"]
