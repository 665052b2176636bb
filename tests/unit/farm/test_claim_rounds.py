"""One round of claiming, where answers come late, reads fail and locks are in doubt (R3, R9, R20)."""

from __future__ import annotations

import pytest

from store import registration
from store.errors import AccessDenied, NotRegistered, RecordInvalid, StoreError, StoreUnavailable
from store.locks import Claim, Holder, Locker
from store.ports import Request, Response
from tests.toys import KEYS, Farms, is_transaction

LOCKS = f"/v1/kv/{KEYS.tree('locks')}"


async def session_of(farms: Farms, name: str) -> str:
    presence = await farms.client.read(KEYS.farm(name))
    assert presence is not None
    return presence.session


async def held_by_b(farms: Farms, locker: Locker, items: list[str]) -> dict[str, Claim]:
    """Claims of a second farm, by item."""
    session = await farms.client.create_session(name="b", ttl=86400)
    schema = (await registration.read_schema(farms.client, KEYS)).modify_index
    claims, _ = await locker.take(items, session, Holder("farm", "b", "n"), schema)
    return {claim.item: claim for claim in claims}


# -- hand-over (R9) ----------------------------------------------------------------------------
async def test_r9_a_lock_handed_over_while_the_locks_are_listed_gets_its_worker(farms: Farms) -> None:
    """The parked query tells of the second lock before the listing that lacks it has come back."""
    first, second = await farms.add(2)
    locker = Locker(farms.client, KEYS, "rcs")
    claims = await held_by_b(farms, locker, [first, second])
    a = await farms.start("a")
    await farms.clock.advance(100.0)
    me = await session_of(farms, "a")
    handed: list[str] = []

    async def hand_over(item: str) -> None:
        handed.append(item)
        await locker.hand_over([claims[item]], me, Holder("farm", "a", item))

    async def while_listed(request: Request, response: Response) -> None:
        if request.path == f"{LOCKS}rcs/" and second not in handed:
            await hand_over(second)
            await farms.clock.sleep(0.3)

    farms.faults["a"].after = while_listed
    await hand_over(first)
    await farms.clock.advance(120.0)
    assert handed == [first, second]
    assert a.works_on == {first, second}
    await farms.settled()


async def test_r9_a_lock_handed_over_gets_its_worker_though_the_first_listing_fails(farms: Farms) -> None:
    (item,) = await farms.add()
    locker = Locker(farms.client, KEYS, "rcs")
    claims = await held_by_b(farms, locker, [item])
    a = await farms.start("a")
    await farms.clock.advance(100.0)
    failed: list[str] = []

    async def fail_once(request: Request) -> None:
        if request.path == f"{LOCKS}rcs/" and not failed:
            failed.append(request.path)
            raise StoreUnavailable("no")

    farms.faults["a"].before = fail_once
    await locker.hand_over([claims[item]], await session_of(farms, "a"), Holder("farm", "a", "n"))
    await farms.clock.advance(10.0)
    assert failed
    assert a.works_on == {item}


async def test_r9_what_a_dead_receiver_did_not_take_is_not_adopted_besides(farms: Farms) -> None:
    """While the hand-over is refused, another lock moves, so the farm lists the locks that it bears."""
    made = await farms.add(40)
    locker = Locker(farms.client, KEYS, "rcs")
    await held_by_b(farms, locker, made[:1])
    a = await farms.start("a")
    await farms.clock.advance(30.0)
    dead = await farms.client.create_session(name="dead", ttl=10)
    await farms.client.destroy_session(dead)
    moved: list[str] = []

    async def move(request: Request) -> None:
        if is_transaction(request) and dead.encode() in request.body and not moved:
            moved.extend(await farms.add())
            await held_by_b(farms, locker, moved)
            await farms.clock.sleep(1.0)

    farms.faults["a"].before = move
    record = f'{{"id":"b","version":"1","kinds":["rcs"],"session":"{dead}"}}'.encode()
    await farms.client.put(KEYS.farm("b"), record)
    await farms.clock.advance(60.0)
    assert moved
    assert a.works_on == set(made[1:])


# -- locks in doubt (R20) ------------------------------------------------------------------------
async def test_r20_a_look_that_finds_the_sentinel_gone_stops_no_worker(farms: Farms) -> None:
    """A refusal's look is answered in the midst of a round, before the parked query says the same."""
    made = await farms.add(20)
    a = await farms.start("a")
    await farms.clock.advance(60.0)
    looks: list[Request] = []

    async def late_if_parked(request: Request, response: Response) -> None:
        if request.path == LOCKS and any(name == "index" for name, _ in request.params):
            await farms.clock.sleep(2.0)
        elif request.path == LOCKS:
            looks.append(request)

    farms.faults["a"].after = late_if_parked
    other = farms.ids.new()
    await held_by_b(farms, Locker(farms.client, KEYS, "rcs"), [other])
    await farms.write(other)
    await farms.clock.settle()
    await farms.client.delete(KEYS.sentinel(KEYS.tree("locks")))
    await farms.clock.advance(0.5)
    assert a.metric("farmd_lock_events_total", event="rejected") == 1
    assert len(looks) == 1
    await farms.clock.advance(60.0)
    assert (a.works_on, len(a.kind.starts)) == (set(made), len(made))
    assert a.metric("farmd_lock_events_total", event="lost") == 0


# -- reads that fail -----------------------------------------------------------------------------
@pytest.mark.parametrize("error", [AccessDenied("403"), RecordInvalid("bad"), StoreUnavailable("no")])
async def test_r3_a_schema_that_cannot_be_read_ends_no_worker(farms: Farms, error: StoreError) -> None:
    """While a tree is in doubt the schema is read again; that read may fail as any other."""
    made = await farms.add(5)
    a = await farms.start("a")
    await farms.clock.advance(60.0)
    session, failed = await session_of(farms, "a"), []

    async def fail(request: Request) -> None:
        if request.path == f"/v1/kv/{KEYS.schema}":
            failed.append(request)
            raise error

    farms.faults["a"].before = fail
    a.kind.barrier_error = NotRegistered("pods: the answer lacks the sentinel")
    made += await farms.add(1)
    await farms.clock.advance(10.0)
    assert failed
    assert (a.works_on, len(a.kind.starts)) == (set(made[:5]), 5)
    farms.faults["a"].before = a.kind.barrier_error = None
    await farms.clock.advance(30.0)
    assert (a.works_on, await session_of(farms, "a")) == (set(made), session)


# -- many refusals (R6) ----------------------------------------------------------------------------
async def test_r6_refusals_of_many_batches_at_once_are_looked_into_as_soon_as_one(farms: Farms) -> None:
    others = await farms.add(200)
    locker = Locker(farms.client, KEYS, "rcs")
    a = await farms.start("a")
    looks: list[Request] = []

    async def late_if_parked(request: Request, response: Response) -> None:
        if request.path == LOCKS and any(name == "index" for name, _ in request.params):
            await farms.clock.sleep(30.0)
        elif request.path == LOCKS:
            looks.append(request)

    farms.faults["a"].after = late_if_parked
    for start in range(0, len(others), 25):
        await held_by_b(farms, locker, others[start : start + 25])
    await farms.clock.advance(1.0)
    assert a.metric("farmd_lock_events_total", event="rejected") == len(others)
    assert looks


# -- much to free ----------------------------------------------------------------------------------
async def test_r8_a_thousand_deleted_items_do_not_keep_a_new_one_waiting(farms: Farms) -> None:
    made = await farms.add(1000)
    a = await farms.start("a")
    await farms.clock.advance(60.0)

    async def over_a_network(request: Request) -> None:
        await farms.clock.sleep(0.01)

    farms.faults["a"].before = over_a_network
    for item in made:
        await farms.remove(item)
    await farms.clock.advance(0.5)
    (new,) = await farms.add(1)
    await farms.clock.advance(2.0)
    assert a.works_on == {new}
    assert set(await farms.locks()) == {new}
    assert a.metric("farmd_lock_events_total", event="released") == len(made)
