"""No room outlives its owner: deleting gives back what it waits for and what a move of its has reserved.

The doctor finds what stayed.
"""

from __future__ import annotations

import json

import pytest

from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.mutation import Call, commit
from farmd.replication import commands
from store import codec
from store.audit import AuditReader, Filter
from store.errors import Conflict
from store.intent import Intent
from store.nodes import Nomination, Reserved
from store.work import Transfer, Work
from tests.people import KEYS, created, person

GONE = "dead0000dead0000"


async def wait_for_room(call: Call, node: str, **owners: str) -> None:
    """Nominations by instance, on a record with a field of a newer version."""
    book = Reserved(
        instances={"db": {"cpu": 1.0}, "cache": {"cpu": 1.0}},
        priorities={"db": 20},
        nominations={name: Nomination(owner=owner, amounts={"cpu": 1.0}) for name, owner in owners.items()},
    )
    value = {**json.loads(codec.encode(book)), "newer": True}
    await call.client.put(KEYS.reserved(node), json.dumps(value).encode())


async def waiting(call: Call, node: str) -> dict[str, str]:
    entry = await call.client.read(KEYS.reserved(node))
    assert entry is not None
    assert json.loads(entry.value)["newer"]
    book = codec.decode(Reserved, entry.value, entry.key)
    return {name: one.owner for name, one in book.nominations.items()}


async def test_deleting_a_controller_withdraws_its_nominations_in_the_same_transaction() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await wait_for_room(call, "n1", hello=rc_id, api="other")
        await wait_for_room(call, "n2", hello=rc_id)
        await wait_for_room(call, "n3", api="other")
        await commit(call, await commands.delete(call, "hello", cascade=False))
        assert [await waiting(call, node) for node in ("n1", "n2", "n3")] == [
            {"api": "other"},
            {},
            {"api": "other"},
        ]
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(action="rc.delete"), 9)
        assert (audit.before["nominations"], audit.after["nominations"]) == (2, 0)


async def test_deleting_writes_over_no_record_that_changed_meanwhile() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await wait_for_room(call, "n1", hello=rc_id)
        mutation = await commands.delete(call, "hello", cascade=False)
        await wait_for_room(call, "n1", hello=rc_id, api="other")
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await waiting(call, "n1") == {"hello": rc_id, "api": "other"}


async def move(call: Call, rc_id: str, node: str, instance: str) -> None:
    """A move that has reserved its place, and placed nothing."""
    transfer = Transfer(id="t", old_node="n9", old_instance="x", new_node=node, new_instance=instance)
    await call.client.put(KEYS.work("rcs", rc_id), codec.encode(Work(transfer=transfer)))


async def reserved(call: Call, node: str) -> Reserved:
    entry = await call.client.read(KEYS.reserved(node))
    assert entry is not None
    return codec.decode(Reserved, entry.value, entry.key)


async def test_w16_deleting_a_controller_gives_back_what_its_move_has_reserved() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await wait_for_room(call, "n1", hello=rc_id, api="other")
        await move(call, rc_id, "n1", "db")
        await commit(call, await commands.delete(call, "hello", cascade=False))
        book = await reserved(call, "n1")
        assert book.instances == {"cache": {"cpu": 1.0}}
        assert (book.priorities, book.generation) == ({}, 1)
        assert await waiting(call, "n1") == {"api": "other"}
        assert await call.client.read(KEYS.work("rcs", rc_id)) is None
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(action="rc.delete"), 9)
        assert (audit.before["reservations"], audit.after["reservations"]) == (1, 0)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_w16_room_at_the_place_of_a_move_that_is_somebodys_by_now_is_left_alone(when: str) -> None:
    async with person() as call:
        rc_id = await created(call, replicas=0)
        await wait_for_room(call, "n1")
        await move(call, rc_id, "n1", "db")
        theirs = codec.encode(Intent("0" * 64, "other"))
        if when == "before":
            await call.client.put(KEYS.intent("n1", "db"), theirs)
        mutation = await commands.delete(call, "hello", cascade=False)
        if when == "before":
            await commit(call, mutation)
        else:
            await call.client.put(KEYS.intent("n1", "db"), theirs)
            with pytest.raises(Conflict):
                await commit(call, mutation)
        assert sorted((await reserved(call, "n1")).instances) == ["cache", "db"]


async def test_w16_the_doctor_withdraws_what_waits_for_nobody_on_request_only() -> None:
    async with person() as call:
        rc_id = await created(call, replicas=1)
        await wait_for_room(call, "n1", hello=rc_id, old=GONE, older=GONE)
        report = await examine(call.client, KEYS, call.clock)
        found = [finding for finding in report.findings if finding.code == "stale-nomination"]
        assert [finding.object for finding in found] == ["reserved/n1/old", "reserved/n1/older"]
        assert len(await waiting(call, "n1")) == 3
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["stale-nomination"]))
        await commit(call, mutation)
        assert await waiting(call, "n1") == {"hello": rc_id}
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(action=fixes.ACTION), 9)
        assert (audit.before["nominations"], audit.after["nominations"]) == (3, 1)


async def test_a_nomination_whose_owner_came_back_stays() -> None:
    async with person() as call:
        await wait_for_room(call, "n1", old=GONE)
        report = await examine(call.client, KEYS, call.clock)
        (mutation,) = await fixes.mutations(call, fixes.choose(report.findings, ["stale-nomination"]))
        await call.client.put(KEYS.record("rcs", GONE), b"{}")
        with pytest.raises(Conflict):
            await commit(call, mutation)
        assert await waiting(call, "n1") == {"old": GONE}
