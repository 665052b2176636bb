"""R10: a crash touches no other item, backoff outlives its owner, blocked lasts until the record changes."""

from __future__ import annotations

import asyncio
import itertools

from farmd.farm.supervisor import BACKOFF_LIMIT, CRASHES, STABLE_SECONDS
from store import codec
from store.errors import StoreUnavailable
from store.locks import Claim
from store.ports import Request
from store.sessions import Session
from store.status import Status
from store.work import Work
from tests.toys import KEYS, Farms, ToyFarm


class Bug(Exception):
    """What a worker crashes with."""


async def crash(claim: Claim, session: Session) -> None:
    raise Bug("no\nluck")


async def status(farms: Farms, item: str) -> Status | None:
    entry = await farms.client.read(KEYS.status("rcs", item))
    return None if entry is None else codec.decode(Status, entry.value, entry.key)


async def crashing(farms: Farms, name: str = "a", count: int = 3) -> tuple[ToyFarm, str, list[str]]:
    """A farm whose first item crashes; and the others."""
    made = await farms.add(count)
    farm = await farms.start(name)
    farm.kind.does[made[0]] = crash
    return farm, made[0], made[1:]


async def blocked(farms: Farms) -> tuple[ToyFarm, str]:
    a, bad, _ = await crashing(farms)
    await farms.clock.advance(120.0)
    assert a.kind.starts.count(bad) == CRASHES
    return a, bad


async def test_w5_r10_a_crash_touches_no_other_item(farms: Farms) -> None:
    a, bad, others = await crashing(farms)
    await farms.clock.advance(60.0)
    assert a.works_on == set(others)
    assert all(a.kind.starts.count(item) == 1 for item in others)
    assert bad in await farms.locks(), "it keeps its item"


async def test_r10_its_next_worker_keeps_its_alerts_alive_and_no_former_one(farms: Farms) -> None:
    a, bad, _ = await crashing(farms)
    await farms.clock.advance(60.0)
    assert a.kind.released == [bad] * (a.kind.starts.count(bad) - 1)


async def test_r10_it_is_tried_again_after_growing_pauses(farms: Farms) -> None:
    times: list[float] = []

    async def note(claim: Claim, session: Session) -> None:
        times.append(farms.clock.mono())
        raise Bug("no luck")

    (item,) = await farms.add()
    a = await farms.start("a")
    a.kind.does[item] = note
    await farms.clock.advance(120.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) == CRASHES - 1
    assert all(0.8 * 2**n <= gap <= 1.2 * 2**n + 0.1 for n, gap in enumerate(gaps))


async def test_r10_a_crash_is_recorded_for_whoever_owns_it_later(farms: Farms) -> None:
    _, bad, _ = await crashing(farms)
    await farms.clock.advance(0.5)
    work = await farms.work(bad)
    assert work is not None
    assert work.crashes == 1
    assert work.not_before > farms.clock.now()
    assert not work.blocked


async def test_r10_the_next_owner_honours_the_backoff(farms: Farms) -> None:
    a, bad, _ = await crashing(farms)
    await farms.clock.advance(9.0)
    work = await farms.work(bad)
    assert work is not None
    assert work.not_before > farms.clock.now() + 2
    b = await farms.start("b")
    a.stop.set()
    await farms.clock.advance(1.0)
    assert bad not in b.kind.starts
    await farms.clock.advance(work.not_before - farms.clock.now() - 0.01)
    assert bad not in b.kind.starts
    await farms.clock.advance(3.0)
    assert bad in b.works_on


async def test_r10_a_hand_over_does_not_shorten_the_backoff(farms: Farms) -> None:
    made = await farms.add(12)
    a = await farms.start("a")
    a.kind.does = dict.fromkeys(made, crash)
    await farms.clock.advance(9.0)
    due = {item: work.not_before for item in made if (work := await farms.work(item))}
    early = []
    b = await farms.start("b")

    async def check(claim: Claim, session: Session) -> None:
        if farms.clock.now() < due[claim.item]:
            early.append(claim.item)
        await asyncio.Event().wait()

    b.kind.does = dict.fromkeys(made, check)
    a.kind.does = dict(b.kind.does)
    await farms.clock.advance(30.0)
    assert b.works_on
    assert a.works_on | b.works_on == set(made)
    assert early == []


async def test_r10_after_n_crashes_it_is_blocked_with_the_reason(farms: Farms) -> None:
    a, bad = await blocked(farms)
    await farms.clock.advance(600.0)
    assert a.kind.starts.count(bad) == CRASHES, "nobody tries it again"
    work, said = await farms.work(bad), await status(farms, bad)
    assert work is not None
    assert said is not None
    assert work.blocked == "Bug: no luck", "on one line"
    assert (said.state, said.farm) == ("blocked", "a")
    assert "5 times" in said.reason
    assert "Bug: no luck" in said.reason


async def test_r10_a_change_of_the_record_unblocks_it(farms: Farms) -> None:
    a, bad = await blocked(farms)
    a.kind.does.clear()
    await farms.write(bad, labels={"fixed": "yes"})
    await farms.clock.advance(1.0)
    assert bad in a.works_on
    assert await farms.work(bad) is None


async def test_r10_other_records_unblock_nothing(farms: Farms) -> None:
    a, bad = await blocked(farms)
    await farms.add(5)
    await farms.clock.advance(60.0)
    assert a.kind.starts.count(bad) == CRASHES


async def test_r10_a_change_during_the_last_crash_is_not_missed(farms: Farms) -> None:
    """Whoever fixes the record while it crashes once more must not have to touch it again."""
    (item,) = await farms.add()
    a = await farms.start("a")

    async def fixed_meanwhile(claim: Claim, session: Session) -> None:
        if a.kind.starts.count(item) == CRASHES:
            await farms.write(item, labels={"fixed": "yes"})
            await farms.clock.sleep(1.0)
            a.kind.does.clear()
        raise Bug("no luck")

    a.kind.does[item] = fixed_meanwhile
    await farms.clock.advance(120.0)
    assert item in a.works_on


async def test_r10_blocked_outlives_its_owner(farms: Farms) -> None:
    a, bad = await blocked(farms)
    b = await farms.start("b")
    a.stop.set()
    await farms.clock.advance(100.0)
    assert bad in await farms.locks()
    assert b.kind.starts.count(bad) == 0
    await farms.write(bad, labels={"fixed": "yes"})
    await farms.clock.advance(1.0)
    assert bad in b.works_on


async def test_r10_a_record_that_changed_while_nobody_owned_it_is_tried(farms: Farms) -> None:
    a, bad = await blocked(farms)
    a.stop.set()
    await farms.clock.advance(10.0)
    await farms.write(bad, labels={"fixed": "yes"})
    b = await farms.start("b")
    await farms.clock.advance(60.0)
    assert bad in b.works_on


async def test_r10_crashes_long_ago_do_not_count(farms: Farms) -> None:
    (item,) = await farms.add()
    a = await farms.start("a")

    async def sometimes(claim: Claim, session: Session) -> None:
        if a.kind.starts.count(item) == CRASHES:
            await farms.clock.sleep(STABLE_SECONDS + 1)
        elif a.kind.starts.count(item) > CRASHES:
            await asyncio.Event().wait()
        raise Bug("no luck")

    a.kind.does[item] = sometimes
    await farms.clock.advance(100.0)
    work = await farms.work(item)
    assert work is not None
    assert work.crashes == 1
    assert not work.blocked


async def test_r10_an_owner_after_long_peace_starts_counting_anew(farms: Farms) -> None:
    (item,) = await farms.add()
    old = Work(crashes=CRASHES - 1, not_before=farms.clock.now() - 3600)
    await farms.client.put(KEYS.work("rcs", item), codec.encode(old))
    a = await farms.start("a")
    a.kind.does[item] = crash
    await farms.clock.advance(0.5)
    work = await farms.work(item)
    assert work is not None
    assert (work.crashes, work.blocked) == (1, "")


async def test_r10_a_time_that_no_farm_can_have_meant_is_not_waited_for(farms: Farms) -> None:
    """Another machine's clock may be years ahead."""
    (item,) = await farms.add()
    absurd = Work(crashes=1, not_before=farms.clock.now() + 1e8)
    await farms.client.put(KEYS.work("rcs", item), codec.encode(absurd))
    a = await farms.start("a")
    await farms.clock.advance(1.5 * BACKOFF_LIMIT)
    assert item in a.works_on


async def test_w6_a_corrupt_state_keeps_no_item_from_its_owner(farms: Farms) -> None:
    (item,) = await farms.add()
    await farms.client.put(KEYS.work("rcs", item), b"{")
    a = await farms.start("a")
    await farms.clock.advance(5.0)
    assert item in a.works_on


async def test_r10_a_crash_that_cannot_be_recorded_backs_off_all_the_same(farms: Farms) -> None:
    a, bad, others = await crashing(farms)
    await farms.clock.advance(0.05)

    async def refuse(request: Request) -> None:
        if b"/work/" in request.body or "d29yay" in request.path:
            raise StoreUnavailable("no")

    farms.faults["a"].before = refuse
    await farms.clock.advance(60.0)
    assert a.kind.starts.count(bad) == CRASHES
    assert a.works_on == set(others)


async def test_a_blocked_item_is_released_when_its_record_goes(farms: Farms) -> None:
    _, bad = await blocked(farms)
    await farms.remove(bad)
    await farms.clock.advance(1.0)
    assert bad not in await farms.locks()


async def test_r10_a_bug_between_two_starts_of_a_worker_does_not_end_its_item(farms: Farms) -> None:
    a, bad, _ = await crashing(farms)
    await farms.clock.advance(0.5)
    a.kind.barrier_error = Bug("the kind's barrier")
    await farms.clock.advance(5.0)
    work = await farms.work(bad)
    assert work is not None
    assert work.crashes > 1, "the bug in the barrier counts as a crash"
    a.kind.barrier_error = None
    a.kind.does.clear()
    await farms.clock.advance(30.0)
    assert bad in a.works_on


async def test_r10_a_worker_that_ends_by_itself_is_started_again(farms: Farms) -> None:
    (item,) = await farms.add()
    a = await farms.start("a")

    async def ends(claim: Claim, session: Session) -> None:
        if a.kind.starts.count(item) == 2:
            raise asyncio.CancelledError  # what it waited for was cancelled, it was not
        if a.kind.starts.count(item) > 2:
            await asyncio.Event().wait()

    a.kind.does[item] = ends
    await farms.clock.advance(0.5)
    work = await farms.work(item)
    assert work is not None
    assert work.crashes == 1
    await farms.clock.advance(10.0)
    assert item in a.works_on


async def test_r4_a_worker_that_fails_while_it_is_cancelled_holds_up_no_stop(farms: Farms) -> None:
    (item,) = await farms.add()
    a = await farms.start("a")

    async def fails_at_end(claim: Claim, session: Session) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Bug("while it was cancelled")

    a.kind.does[item] = fails_at_end
    await farms.clock.advance(0.5)
    a.stop.set()
    await farms.clock.advance(0.5)
    assert a.task is not None
    assert a.task.done()
    assert item not in await farms.locks()


async def test_a_farm_stops_at_once_whatever_its_workers_wait_for(farms: Farms) -> None:
    a, _ = await blocked(farms)
    a.stop.set()
    await farms.clock.advance(0.5)
    assert a.task is not None
    assert a.task.done()
