"""A farm whose session ended under it, with a write in hand, writes nothing any more (R2, R12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fault.farm_process import FarmProcess, Nursery
from tests.fault.rig import Rig, id_preferring, keys_of, named, rig_on, sessions_of
from tests.fleet import eventually, in_time
from tests.proxy import Hold, Proxy, transactions

PODS = 60


@asynccontextmanager
async def write_in_hand(
    consul: str, nursery: Nursery
) -> AsyncIterator[tuple[Rig, Proxy, FarmProcess, Hold, str]]:
    """A farm process that has placed half, and whose next transaction is held before Consul; a survivor.

    Only its fence keeps the held transaction out: the survivor will choose other nodes.
    """
    async with rig_on(consul, nursery, nodes=2 * PODS) as rig, Proxy(consul) as proxy:
        rc = await rig.rc(PODS // 2, id=id_preferring("victim", "survivor"))
        victim = rig.process("victim", proxy.address)
        await rig.owned_by("victim", rc.id)
        await rig.settled("before")
        await rig.farm("survivor")
        hold = proxy.hold_transaction()
        await rig.change(rc.id, replicas_desired=PODS)
        await in_time(hold.reached.wait())
        if not any("/audit/" in key for key in keys_of(hold)):
            # That was a status; what is wanted is a change of pods.
            first, hold = hold, proxy.hold_transaction()
            first.release()
            await in_time(hold.reached.wait())
        await rig.shun(hold)
        yield rig, proxy, victim, hold, rc.id


async def nothing_was_written(rig: Rig, hold: Hold, rc_id: str, lock: int) -> None:
    """The zombie's transaction left no trace and changed no owner."""
    dump = await rig.settled("after the zombie's write")
    (audit,) = (key for key in keys_of(hold) if "/audit/" in key)
    assert audit not in dump.entries, "the zombie's transaction was rejected as a whole"
    assert await rig.owner(rc_id) == "survivor"
    assert dump.entries[rig.keys.lock("rcs", rc_id)].modify_index == lock, "and its owner never lost it"
    written = [i for i, record in dump.audits if (record.actor, record.id) == ("farm/victim", rc_id)]
    assert all(index < lock for index in written)


async def lock_index(rig: Rig, rc_id: str) -> int:
    entry = await rig.client.read(rig.keys.lock("rcs", rc_id), mode="consistent")
    assert entry is not None
    return entry.modify_index


async def is_a_healthy_member_again(rig: Rig, former: str) -> None:
    """It bears a new session and works on what it prefers."""

    async def present() -> bool:
        return await rig.session_of("victim") not in ("", former)

    await eventually(present, what="the return of the zombie")
    rc = await rig.rc(5, name="later", manifest=named("later"), id=id_preferring("victim", "survivor"))
    await rig.owned_by("victim", rc.id)
    await rig.settled("work of the returned")


@pytest.mark.parametrize("order", ["wakes first", "its write arrives first"])
async def test_w2_a_stopped_farm_writes_nothing_after_its_session_ended(
    consul_dev: str, nursery: Nursery, order: str
) -> None:
    """The session is ended by hand; ``test_real_expiry.py`` lets Consul do it."""
    async with write_in_hand(consul_dev, nursery) as (rig, _, victim, hold, rc_id):
        former = await rig.session_of("victim")
        victim.pause()
        await rig.expire("victim")
        await rig.owned_by("survivor", rc_id)
        await rig.settled("take-over")
        lock = await lock_index(rig, rc_id)
        if order == "wakes first":
            victim.resume()
            await is_a_healthy_member_again(rig, former)
        hold.release()
        await in_time(hold.finished.wait())
        await nothing_was_written(rig, hold, rc_id, lock)
        if order != "wakes first":
            victim.resume()
            await is_a_healthy_member_again(rig, former)


async def test_r2_a_lost_session_ends_all_work_before_the_next_begins(consul_dev: str) -> None:
    """Many workers with writes in hand, the session destroyed by hand: they end, then comes a new one."""
    async with rig_on(consul_dev, nodes=PODS) as rig, Proxy(consul_dev) as proxy:
        rcs = [await rig.rc(1, name=f"app-{n}", manifest=named(f"app-{n}")) for n in range(20)]
        farm = await rig.farm("alive", proxy.address)
        await rig.settled("before")
        former = await rig.session_of("alive")
        holds = [proxy.hold(transactions, k) for k in range(1, 9)]
        for rc in rcs:
            await rig.change(rc.id, replicas_desired=3)
        await in_time(holds[3].reached.wait())
        for hold in holds[:4]:
            await rig.shun(hold)
        before = len(proxy.requests)
        await rig.expire("alive")

        async def reopened() -> bool:
            return any(seen.path == "/v1/session/create" for seen in proxy.requests[before:])

        await eventually(reopened, what="a new session")
        created = next(
            at for at, seen in enumerate(proxy.requests) if at >= before and seen.path == "/v1/session/create"
        )
        for hold in holds:
            hold.release()
        await rig.settled("after")
        await rig.owned_by("alive", *(rc.id for rc in rcs))
        assert farm.owned == {rc.id for rc in rcs}
        late = [
            seen for seen in proxy.requests[created:] if transactions(seen) and former in sessions_of(seen)
        ]
        assert late == [], "nothing of the old session is sent once the new one is asked for"
        dump = await rig.well("end")
        for hold in holds:
            if hold.seen is not None and former in sessions_of(hold.seen):
                assert not [key for key in keys_of(hold) if "/audit/" in key and key in dump.entries]
        entries = [dump.entries[rig.keys.lock("rcs", rc.id)] for rc in rcs]
        assert {entry.session for entry in entries} == {await rig.session_of("alive")}
