"""A farm's life around its claims: how it comes back from a store that it cannot use, and how it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from farmd.farm.errors import AnotherCluster
from farmd.farm.farm import BEGIN_ANEW_SECONDS
from store import codec, presence, registration
from store.entry import Entry
from store.errors import AccessDenied, OutcomeUnknown, RecordInvalid, StoreError, StoreUnavailable
from store.farms import ClusterReport, Member
from store.locks import Claim
from store.ports import Request, Response
from store.sessions import SUSPENDED, Session
from tests.fleet import in_time
from tests.toys import KEYS, Farms, ToyFarm, is_transaction
from tests.virtual import SeededIds


def made_sessions(farms: Farms, name: str) -> int:
    return sum(request.path == "/v1/session/create" for request in farms.faults[name].sent)


def reads_of(farms: Farms, name: str, key: str) -> int:
    return sum(request.path == f"/v1/kv/{key}" for request in farms.faults[name].sent)


async def wipe(farms: Farms) -> list[Entry]:
    """Delete everything, sessions included, as an operator's accident would; returns what was there."""
    page = await farms.client.list(KEYS.prefix)
    await farms.client.delete(KEYS.prefix, recurse=True)
    entries = [Entry.of(raw) for raw in page.items]
    for session in {entry.session for entry in entries if entry.session}:
        await farms.client.destroy_session(session)
    return entries


# -- a store that cannot be used -------------------------------------------------------------------
async def test_r20_on_a_wiped_store_no_session_is_opened_and_it_is_asked_seldom(farms: Farms) -> None:
    await farms.add(3)
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    before = made_sessions(farms, "a")
    entries = await wipe(farms)
    await farms.clock.advance(60.0)
    asked = reads_of(farms, "a", KEYS.cluster)
    await farms.clock.advance(600.0)
    assert made_sessions(farms, "a") == before
    assert 600 / 45 - 1 <= reads_of(farms, "a", KEYS.cluster) - asked <= 600 / 15 + 1
    assert a.task is not None
    assert not a.task.done()
    for entry in entries:
        if not entry.session:
            await farms.client.put(entry.key, entry.value)
    await farms.clock.advance(60.0)
    assert len(a.works_on) == 3


async def test_r20_no_farm_joins_another_cluster_than_its_own(farms: Farms) -> None:
    await farms.add(3)
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    before = made_sessions(farms, "a")
    await wipe(farms)
    await registration.register_cluster(farms.client, KEYS, SeededIds(77))
    await farms.clock.advance(600.0)
    assert made_sessions(farms, "a") == before
    assert "another cluster" in a.farm.lacks()


@pytest.mark.parametrize("sessions", ["gone", "kept"])
async def test_a_farm_whose_cluster_had_nothing_joins_the_one_whose_data_are_back(
    farms: Farms, sessions: str
) -> None:
    """As one that was started in a wiped store: a restore ends its session, an import leaves it."""
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    if sessions == "gone":
        await wipe(farms)
        await registration.register_cluster(farms.client, KEYS, SeededIds(77))
    else:
        for entry in await listed(farms):
            if entry.value == registration.sentinel_value(farms.cluster):
                await farms.client.put(entry.key, registration.sentinel_value("f" * 32))
    await farms.clock.advance(60.0)
    assert a.task is not None
    with pytest.raises(AnotherCluster):
        await a.task
    assert not [entry for entry in await listed(farms) if entry.session]


async def listed(farms: Farms) -> list[Entry]:
    return [Entry.of(raw) for raw in (await farms.client.list(KEYS.prefix)).items]


async def test_r15_after_a_restore_of_the_store_a_farm_begins_anew_but_not_all_the_time(farms: Farms) -> None:
    await farms.add(3)
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    before = {entry.session for entry in (await farms.locks()).values()}
    a.caches.restored.set()
    await farms.clock.advance(5.0)
    after = {entry.session for entry in (await farms.locks()).values()}
    assert before.isdisjoint(after)
    assert len(a.works_on) == 3
    await farms.settled()
    made = made_sessions(farms, "a")
    for _ in range(60):
        a.caches.restored.set()
        await farms.clock.advance(1.0)
    assert made_sessions(farms, "a") - made <= 60 / BEGIN_ANEW_SECONDS + 1


async def test_after_a_good_time_the_first_pause_is_short_again(farms: Farms) -> None:
    await farms.add(3)
    a = await farms.start("a")
    await farms.clock.advance(20.0)

    async def cut(request: Request) -> None:
        raise StoreUnavailable("cut off")

    for _ in range(2):
        session = next(iter((await farms.locks()).values())).session
        farms.faults["a"].before = cut
        await farms.client.destroy_session(session)
        await farms.clock.advance(300.0)
        farms.faults["a"].before = None
        await farms.clock.advance(60.0)
        assert len(a.works_on) == 3
    session = next(iter((await farms.locks()).values())).session
    await farms.client.destroy_session(session)
    await farms.clock.advance(8.0)
    assert len(a.works_on) == 3


async def test_a_farm_that_waits_for_a_usable_store_stops_at_once(farms: Farms) -> None:
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    await wipe(farms)
    await farms.clock.advance(300.0)
    a.stop.set()
    await farms.clock.advance(0.01)
    assert a.task is not None
    assert a.task.done()


async def test_r7_a_farm_whose_announcement_had_no_answer_knows_itself_again(farms: Farms) -> None:
    """The leader is lost just then: neither the answer nor the goodbye of that session gets through."""
    await farms.add(3)
    a = await farms.start("a", process=presence.this_process())

    async def cut(request: Request) -> None:
        raise StoreUnavailable("cut off")

    async def lose(request: Request, response: Response) -> None:
        if is_transaction(request) and KEYS.farm("a").encode() in request.body and response.status == 200:
            farms.faults["a"].before, farms.faults["a"].after = cut, None
            raise OutcomeUnknown("no answer")

    await farms.clock.advance(20.0)
    first = await farms.client.read(KEYS.farm("a"))
    assert first is not None
    farms.faults["a"].after = lose
    await farms.client.destroy_session(first.session)
    while farms.faults["a"].before is None:
        await farms.clock.advance(0.1)
    announced = await farms.client.read(KEYS.farm("a"))
    assert announced is not None
    farms.faults["a"].before = None
    await farms.clock.advance(5.0)
    assert a.task is not None
    assert not a.task.done()
    assert len(a.works_on) == 3
    again = await farms.client.read(KEYS.farm("a"))
    assert again is not None
    assert again.session not in ("", announced.session)


async def deleted(farms: Farms, key: str) -> None:
    await farms.client.delete(key)


async def overwritten(farms: Farms, key: str) -> None:
    await farms.client.put(key, b"{")


@pytest.mark.parametrize("harm", [deleted, overwritten])
async def test_r1_a_farm_whose_presence_is_lost_is_present_again_within_a_minute(
    farms: Farms, harm: Callable[[Farms, str], Awaitable[None]]
) -> None:
    (item,) = await farms.add(1)
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    key = KEYS.farm("a")
    before = await farms.client.read(key)
    assert before is not None
    await harm(farms, key)
    await farms.clock.advance(60.0)
    after = await farms.client.read(key)
    assert after is not None
    assert after.session == before.session
    assert codec.decode(Member, after.value, key).id == "a"
    assert a.kind.starts == [item], "its work goes on"
    index = after.modify_index
    await farms.clock.advance(600.0)
    after = await farms.client.read(key)
    assert after is not None
    assert after.modify_index == index, "and it is written once"


async def test_r7_a_farm_that_reports_a_trouble_is_present_for_as_long_as_before(farms: Farms) -> None:
    a = await farms.start("a")
    await farms.clock.advance(60.0)
    before = await farms.client.read(KEYS.farm("a"))
    assert before is not None
    a.farm.features.report("prod", ClusterReport(troubles={"denied": "may not list pods"}))
    await farms.clock.advance(1.0)
    after = await farms.client.read(KEYS.farm("a"))
    assert after is not None
    then, now = (codec.decode(Member, each.value, each.key) for each in (before, after))
    assert now.clusters["prod"].troubles == {"denied": "may not list pods"}
    assert now.since == then.since


async def test_r1_a_farm_whose_session_ends_before_it_is_announced_opens_another(farms: Farms) -> None:
    await farms.add(3)
    a = await farms.start("a")
    await farms.clock.advance(20.0)

    async def end(request: Request) -> None:
        if is_transaction(request) and KEYS.farm("a").encode() in request.body:
            farms.faults["a"].before = None
            await farms.client.destroy_session(json.loads(request.body)[-1]["KV"]["Session"])

    farms.faults["a"].before = end
    first = await farms.client.read(KEYS.farm("a"))
    assert first is not None
    await farms.client.destroy_session(first.session)
    await farms.clock.advance(60.0)
    assert a.task is not None
    assert not a.task.done()
    assert len(a.works_on) == 3


@pytest.mark.parametrize("error", [AccessDenied("403"), RecordInvalid("it does not decode")])
async def test_what_a_person_must_mend_ends_no_farm(farms: Farms, error: StoreError) -> None:
    await farms.add(3)

    async def refuse(request: Request) -> None:
        if request.path == f"/v1/kv/{KEYS.schema}":
            raise error

    a = await farms.start("a")
    first = await farms.client.read(KEYS.farm("a"))
    assert first is not None
    farms.faults["a"].before = refuse
    await farms.client.destroy_session(first.session)
    await farms.clock.advance(60.0)
    asked = reads_of(farms, "a", KEYS.schema)
    await farms.clock.advance(600.0)
    assert a.task is not None
    assert not a.task.done()
    assert 600 / 45 - 1 <= reads_of(farms, "a", KEYS.schema) - asked <= 600 / 15 + 1
    assert a.farm.lacks() == f"waiting for Consul: {error.message}"
    farms.faults["a"].before = None
    await farms.clock.advance(60.0)
    assert len(a.works_on) == 3


@pytest.mark.parametrize("round_takes", [0.0, 20.0])
async def test_r15_no_worker_goes_on_with_what_it_read_before_its_session_resumed(
    farms: Farms, round_takes: float
) -> None:
    """Neither while the claim loop is idle, nor while it is in the middle of a round."""
    (item,) = await farms.add(1)
    a = await farms.start("a")
    could_write: list[tuple[int, float]] = []

    async def work(claim: Claim, session: Session) -> None:
        start = a.kind.starts.count(item)
        while True:
            if session.valid():
                could_write.append((start, farms.clock.mono()))
            await farms.clock.sleep(0.01)

    async def busy(request: Request) -> None:
        if is_transaction(request):
            await farms.clock.sleep(round_takes)
        elif "session/renew" in request.path and farms.clock.mono() < resumes:
            raise StoreUnavailable("cut off")

    a.kind.does[item] = work
    await farms.clock.advance(40.0)
    resumes = farms.clock.mono() + 12.0
    farms.faults["a"].before = busy
    await farms.add(1)
    await farms.clock.advance(11.9)
    suspended = farms.clock.mono()
    assert could_write[-1][1] < suspended - 1.0
    assert a.farm.lacks() == SUSPENDED
    await farms.clock.advance(15.0)
    starts = {start for start, when in could_write if when > suspended}
    assert starts == {2}, "the second start, and it came without an idle round's wait"
    assert a.metric("farmd_session_events_total", event="lost") == 0
    assert a.farm.lacks() == ""


# -- leaving ---------------------------------------------------------------------------------------
async def two(farms: Farms, drain: float, items: int = 90) -> tuple[ToyFarm, ToyFarm, set[str]]:
    made = await farms.add(items)
    a, b = await farms.start("a", drain=drain), await farms.start("b")
    await farms.clock.advance(30.0)
    assert a.works_on | b.works_on == set(made)
    assert len(a.works_on) > 20, "more than one batch"
    return a, b, set(made)


async def test_r9_a_draining_farm_leaves_no_item_without_a_holder_for_a_moment(farms: Farms) -> None:
    a, b, made = await two(farms, drain=30.0)
    a.stop.set()
    assert a.task is not None
    while not a.task.done():
        await farms.clock.advance(0.01)
        assert set(await farms.locks()) == made
    await farms.clock.advance(0.2)
    assert b.works_on == made
    assert a.works_on == set()
    assert a.metric("farmd_lock_events_total", event="handed_over") == len(a.kind.starts)


async def test_r7_a_draining_farm_says_so_and_is_given_nothing(farms: Farms) -> None:
    a, b, made = await two(farms, drain=30.0)
    present = []

    async def note(request: Request) -> None:
        entry = await farms.client.read(KEYS.farm("a"))
        present.append(b"" if entry is None else entry.value)

    farms.faults["b"].before = note
    a.stop.set()
    more = set(await farms.add(10))
    await farms.clock.advance(5.0)
    assert b.works_on == made | more
    assert any(b'"draining":true' in value for value in present)


async def test_r9_a_farm_that_has_not_read_everything_is_handed_nothing_until_it_has(farms: Farms) -> None:
    await farms.add(6)
    a = await farms.start("a")
    await farms.clock.advance(20.0)
    sentinel = KEYS.sentinel(KEYS.tree("nodes"))
    value = await farms.client.read(sentinel)
    assert value is not None
    await farms.client.delete(sentinel)
    b = await farms.start("b")
    await farms.clock.advance(120.0)
    assert (len(a.works_on), len(b.works_on)) == (6, 0), "an item is held by a farm that does not work"
    told = await farms.client.read(KEYS.farm("b"))
    assert told is not None
    assert codec.decode(Member, told.value, told.key).starting
    assert b.farm.lacks().startswith("waiting for the first read of ")
    assert "nodes: the answer lacks the sentinel" in b.farm.lacks()
    await farms.client.put(sentinel, value.value)
    await farms.clock.advance(60.0)
    assert (len(a.works_on), len(b.works_on)) == (3, 3)
    assert b.farm.lacks() == ""


async def test_r9_a_farm_with_nobody_to_hand_over_to_stops_at_once(farms: Farms) -> None:
    await farms.add(5)
    a = await farms.start("a", drain=600.0)
    await farms.clock.advance(30.0)
    a.stop.set()
    await farms.clock.advance(0.5)
    assert a.task is not None
    assert a.task.done()
    assert await farms.locks() == {}


async def test_r4_a_drain_that_gets_nowhere_ends_with_its_time_and_frees_the_rest(farms: Farms) -> None:
    a, b, made = await two(farms, drain=4.0)

    async def hang(request: Request) -> None:
        if request.path == "/v1/txn" and b'"delete"' in request.body:
            await asyncio.Event().wait()

    farms.faults["a"].before = hang
    a.stop.set()
    await farms.clock.advance(3.5)
    assert a.task is not None
    assert not a.task.done()
    await farms.clock.advance(2.0)
    assert a.task.done()
    assert b.works_on == made


async def test_r4_without_a_drain_a_stop_frees_all_at_once(farms: Farms) -> None:
    a, b, made = await two(farms, drain=0.0)
    a.stop.set()
    await farms.clock.settle()
    assert a.task is not None
    await in_time(a.task)
    assert a.metric("farmd_lock_events_total", event="handed_over") == 0
    await farms.clock.advance(0.5)
    assert b.works_on == made


async def test_r2_a_bug_in_the_renewal_of_the_session_ends_the_farm_with_that_error(farms: Farms) -> None:
    a = await farms.start("a")
    await farms.clock.advance(1.0)

    async def bug(request: Request) -> None:
        if "/session/renew/" in request.path:
            raise ZeroDivisionError("renewal")

    farms.faults["a"].before = bug
    await farms.clock.advance(10.0)
    assert a.task is not None
    assert a.task.done(), "it neither goes on without renewal nor opens one session after the other"
    with pytest.raises(ZeroDivisionError):
        a.task.result()


# -- parts that end --------------------------------------------------------------------------------
async def test_a_farm_whose_copy_of_a_tree_is_cancelled_ends_and_does_not_go_on_with_an_old_copy(
    farms: Farms,
) -> None:
    await farms.add(1)
    a = await farms.start("a")

    async def cancelled(request: Request) -> None:
        if request.path == f"/v1/kv/{KEYS.tree('reality')}":
            raise asyncio.CancelledError

    farms.faults["a"].before = cancelled
    await farms.clock.advance(60.0)
    assert a.task is not None
    assert a.task.done(), "nobody follows reality any more"
    with pytest.raises(RuntimeError, match="was cancelled, and not by its caller"):
        await a.task
