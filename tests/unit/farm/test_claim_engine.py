"""The claim engine on virtual time: real farms, toy workers, the embedded server (R3, R6–R12, W1, W6)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from farmd.farm.errors import ClaimLost
from store import codec, operations
from store.errors import OutcomeUnknown, StoreUnavailable
from store.farms import Member
from store.locks import Claim, Holder, Locker
from store.ports import Request, Response
from store.sessions import Session
from tests.toys import KEYS, Farms, ToyFarm, is_transaction


async def balanced(farms: Farms, seconds: float = 30.0) -> None:
    await farms.clock.advance(seconds)
    await farms.settled()


def takes_locks(request: Request) -> bool:
    return is_transaction(request) and b'"lock"' in request.body and b"check-not-exists" in request.body


def hands_over(request: Request) -> bool:
    return is_transaction(request) and b'"lock"' in request.body and b'"delete"' in request.body


# -- claiming ----------------------------------------------------------------------------------
async def test_r3_every_item_is_claimed_once_and_gets_one_worker(farms: Farms) -> None:
    made = await farms.add(100)
    a = await farms.start("a")
    await balanced(farms)
    assert a.works_on == set(made)
    assert sorted(a.kind.starts) == sorted(made)


async def test_new_items_are_claimed_as_they_come(farms: Farms) -> None:
    a = await farms.start("a")
    await balanced(farms)
    made = await farms.add(3)
    await farms.clock.advance(0.2)
    assert a.works_on == set(made)


async def test_r7_two_farms_claim_their_own_first_and_reject_nothing(farms: Farms) -> None:
    a, b = await farms.start("a"), await farms.start("b")
    await farms.clock.advance(5.0)
    made = await farms.add_at_once(60)
    await farms.clock.advance(0.5)
    assert a.works_on | b.works_on == set(made)
    await balanced(farms)
    for farm in (a, b):
        assert farm.metric("farmd_lock_events_total", event="rejected") == 0
        assert farm.metric("farmd_lock_events_total", event="handed_over") == 0


async def test_r15_a_worker_starts_only_after_a_read_that_began_after_its_claim(farms: Farms) -> None:
    (item,) = await farms.add()
    a = await farms.start("a")
    order: list[str] = []

    async def note(request: Request, response: Response) -> None:
        if takes_locks(request):
            order.append("claimed")
        elif request.path.startswith("/v1/kv/farmd/rcs") and all(n != "index" for n, _ in request.params):
            order.append("read")

    async def begin(claim: Claim, session: Session) -> None:
        order.append("worker")
        await asyncio.Event().wait()

    farms.faults["a"].after = note
    a.kind.does[item] = begin
    await farms.clock.advance(1.0)
    assert order[-3:] == ["claimed", "read", "worker"]


async def test_r15_without_a_fresh_read_nothing_starts_and_the_locks_are_free(farms: Farms) -> None:
    made = await farms.add(3)
    a = await farms.start("a")
    a.kind.barrier_error = StoreUnavailable("no")
    await farms.clock.advance(0.2)
    assert a.kind.starts == []
    a.kind.barrier_error = None
    await balanced(farms, 10.0)
    assert a.works_on == set(made)


async def test_r11_an_item_that_needs_what_a_farm_does_not_know_is_not_claimed(farms: Farms) -> None:
    (plain,) = await farms.add()
    (special,) = await farms.add(needs=["gpu"])
    a = await farms.start("a")
    await balanced(farms, 60.0)
    assert a.works_on == {plain}
    b = await farms.start("b", features=("gpu",))
    await balanced(farms, 60.0)
    assert special in b.works_on


async def test_r11_who_loses_a_feature_gives_up_what_needs_it_and_who_has_it_takes_that(farms: Farms) -> None:
    plain, special = await farms.add(4), set(await farms.add(4, needs=["far"]))
    pair = {name: await farms.start(name) for name in ("a", "b")}
    for each in pair.values():
        each.farm.features.add("far")
    await balanced(farms, 60.0)
    a, b = pair.values()
    assert a.works_on | b.works_on == {*plain, *special}
    a.farm.features.withdraw("far")
    await balanced(farms, 60.0)
    assert special <= b.works_on
    assert a.works_on == set(plain) - b.works_on
    assert a.works_on
    said = await farms.client.read(KEYS.farm("a"))
    assert said is not None
    assert "far" not in codec.decode(Member, said.value, said.key).features
    a.farm.features.add("far")
    b.farm.features.withdraw("far")
    await balanced(farms, 60.0)
    assert special <= a.works_on


async def test_r11_needs_decide_who_is_preferred_and_nothing_moves_back_and_forth(farms: Farms) -> None:
    plain = await farms.add(30)
    special = await farms.add(30, needs=["gpu"])
    a, b = await farms.start("a"), await farms.start("b", features=("gpu",))
    await balanced(farms, 60.0)
    assert set(special) <= b.works_on
    assert a.works_on | b.works_on == {*plain, *special}
    starts = (list(a.kind.starts), list(b.kind.starts))
    await balanced(farms, 300.0)
    assert (a.kind.starts, b.kind.starts) == starts, "an item moved after balance"


async def test_r11_an_item_that_comes_to_need_more_is_released_to_who_knows_it(farms: Farms) -> None:
    made = await farms.add(20)
    a = await farms.start("a")
    await balanced(farms)
    b = await farms.start("b", features=("gpu",))
    await balanced(farms)
    mine = min(a.works_on)
    await farms.write(mine, needs=["gpu"])
    await balanced(farms)
    assert mine in b.works_on
    assert a.works_on | b.works_on == set(made)


async def test_w12_a_selector_partitions_the_work(farms: Farms) -> None:
    east = await farms.add(5, labels={"zone": "east"})
    west = await farms.add(5, labels={"zone": "west"})
    a = await farms.start("a", selector="zone=east")
    b = await farms.start("b", selector="zone=west")
    await balanced(farms)
    assert (a.works_on, b.works_on) == (set(east), set(west))
    await farms.write(east[0], labels={"zone": "west"})
    await balanced(farms)
    assert (a.works_on, b.works_on) == (set(east[1:]), {east[0], *west})


async def test_a_deleted_item_is_released(farms: Farms) -> None:
    made = await farms.add(3)
    a = await farms.start("a")
    await balanced(farms)
    await farms.remove(made[0])
    await balanced(farms, 1.0)
    assert a.works_on == set(made[1:])
    assert set(await farms.locks()) == set(made[1:])


async def test_r20_nothing_is_released_while_the_records_are_in_doubt(farms: Farms) -> None:
    made = await farms.add(3)
    a = await farms.start("a")
    await balanced(farms)
    await farms.client.delete(KEYS.tree("rcs"), recurse=True)
    await balanced(farms, 120.0)
    assert a.works_on == set(made)


async def test_w6_a_corrupt_item_is_owned_once_whatever_the_selectors(farms: Farms) -> None:
    (good,) = await farms.add(labels={"zone": "east"})
    a = await farms.start("a", selector="zone=east")
    b = await farms.start("b", selector="zone=west")
    await farms.client.put(KEYS.record("rcs", "00ff"), b"{")
    await balanced(farms)
    assert good in a.works_on
    assert ("00ff" in a.works_on) + ("00ff" in b.works_on) == 1


@pytest.mark.parametrize("key", ["locks/", "locks/rcs", "locks/rcs/", "locks/a/b/c/d", "locks/rcs/x/other"])
async def test_w6_a_lock_key_that_nobody_meant_stops_no_farm(farms: Farms, key: str) -> None:
    made = await farms.add(2)
    a = await farms.start("a")
    await balanced(farms)
    await farms.client.put(KEYS.prefix + key, b"")
    more = await farms.add(2)
    await farms.clock.advance(5.0)
    assert a.works_on >= {*made, *more}
    assert a.task is not None
    assert not a.task.done()


async def test_a_mutation_lock_is_no_claim_and_may_outlive_its_item(farms: Farms) -> None:
    (item,) = await farms.add()
    session = await Session.open(farms.client, farms.clock, name="person", ttl=3600)
    await farms.client.put(KEYS.mutation_lock("rcs", item), b"user/me/n", acquire=session.id)
    await farms.client.put(KEYS.mutation_lock("rcs", "00gone"), b"user/me/n", acquire=session.id)
    a = await farms.start("a")
    await farms.clock.advance(5.0)
    assert a.works_on == {item}


async def test_r1_a_schema_that_was_written_again_is_read_again(farms: Farms) -> None:
    a = await farms.start("a")
    await balanced(farms)
    schema = await farms.client.read(KEYS.schema)
    assert schema is not None
    await farms.client.put(KEYS.schema, schema.value + b" ")
    made = await farms.add(3)
    await balanced(farms)
    assert a.works_on == set(made)


async def test_a_schema_that_is_too_new_ends_the_farm(farms: Farms) -> None:
    a = await farms.start("a")
    await balanced(farms)
    await farms.client.put(KEYS.schema, b'{"version": 99, "oldest": 99}')
    await farms.add(1)
    await farms.clock.advance(10.0)
    assert a.task is not None
    assert a.task.done()
    assert "upgrade" in str(a.task.exception())


# -- taking over -------------------------------------------------------------------------------
async def test_w1_idle_items_of_a_dead_session_are_taken_over_and_nobody_edits_anything(
    farms: Farms,
) -> None:
    made = await farms.add(40)
    a, b = await farms.start("a"), await farms.start("b")
    await balanced(farms)
    lost = set(a.works_on)
    assert lost
    assert lost != set(made)
    faults = farms.faults["a"]

    async def cut(request: Request) -> None:
        raise StoreUnavailable("cut off")

    faults.before = cut
    await farms.clock.advance(40.0)
    assert b.works_on == set(made)


async def test_r2_a_farm_that_is_cut_off_ends_its_workers_before_it_claims_again(farms: Farms) -> None:
    made = await farms.add(10)
    a = await farms.start("a")
    await balanced(farms)
    session = next(iter((await farms.locks()).values())).session
    await farms.client.destroy_session(session)
    overlapping = []

    async def check(claim: Claim, session: Session) -> None:
        overlapping.extend(c for c in a.kind.running[claim.item] if c is not claim)
        await asyncio.Event().wait()

    a.kind.does.update(dict.fromkeys(made, check))
    await balanced(farms)
    assert a.works_on == set(made)
    assert Counter(a.kind.starts) == dict.fromkeys(made, 2)
    assert overlapping == []
    assert Counter(a.kind.released) == dict.fromkeys(made, 1), "the next owner keeps the alerts alive"


async def test_r4_a_clean_stop_frees_all_at_once_and_others_follow(farms: Farms) -> None:
    made = await farms.add(60)
    a, b = await farms.start("a"), await farms.start("b")
    await balanced(farms)
    mine = set(a.works_on)
    assert mine
    a.stop.set()
    await farms.clock.advance(0.5)
    assert a.task is not None
    assert a.task.done()
    assert a.works_on == set()
    assert b.works_on == set(made), "members are known at once, so nothing waits for patience"
    assert b.metric("farmd_lock_events_total", event="claimed") == len(made)
    assert b.metric("farmd_lock_events_total", event="adopted") == 0, "what it took, nobody gave it"


async def test_a_lock_that_was_deleted_by_hand_ends_its_worker_and_is_taken_again(farms: Farms) -> None:
    (item,) = await farms.add()
    a = await farms.start("a")
    await balanced(farms)
    first = a.kind.running[item][0]
    await farms.client.delete(KEYS.lock("rcs", item))
    await balanced(farms, 5.0)
    assert a.kind.running[item][0].index > first.index
    assert a.metric("farmd_lock_events_total", event="lost") == 1


async def test_r12_a_worker_that_lost_its_claim_is_ended_and_the_item_owned_again(farms: Farms) -> None:
    """Somebody else's lock stands where ours did: only a refused write tells."""
    (item,) = await farms.add()
    a = await farms.start("a")
    await balanced(farms)
    stranger = await Session.open(farms.client, farms.clock, name="stranger", ttl=10)
    key = KEYS.lock("rcs", item)
    await farms.client.transaction([operations.delete(key), operations.lock(key, b"x/y/z", stranger.id)])

    async def write(claim: Claim, session: Session) -> None:
        raise ClaimLost("fenced")

    a.kind.does[item] = write
    a.farm.loops[0].supervisor._running[item].task.cancel()
    await farms.clock.advance(1.0)
    assert a.works_on == set()
    a.kind.does.clear()
    await balanced(farms, 60.0)
    assert a.works_on == {item}
    assert set(a.kind.released) == {item}, "the next owner keeps the alerts alive"


# -- unknown outcomes (R3, R9) -----------------------------------------------------------------
def once(condition: object, error: Exception) -> object:
    """A fault for the first request that fits."""
    state = {"left": 1}

    def fits(request: Request) -> bool:
        if state["left"] and condition(request):  # type: ignore[operator]
            state["left"] = 0
            return True
        return False

    async def before(request: Request) -> None:
        if fits(request):
            raise error

    async def after(request: Request, response: Response) -> None:
        if fits(request):
            raise error

    before.after = after  # type: ignore[attr-defined]
    return before


async def test_r3_a_claim_whose_answer_was_lost_is_found_and_worked_on(farms: Farms) -> None:
    made = await farms.add(50)
    a = await farms.start("a")
    farms.faults["a"].after = once(takes_locks, OutcomeUnknown("lost")).after  # type: ignore[attr-defined]
    await balanced(farms)
    assert a.works_on == set(made)
    assert sorted(a.kind.starts) == sorted(made)


async def test_r3_a_claim_whose_answer_and_check_were_lost_is_found_later(farms: Farms) -> None:
    """Also where another member is preferred: the lock must not stay without a worker."""
    a = await farms.start("a")
    ghost = await Session.open(farms.client, farms.clock, name="ghost", ttl=3600)
    record = b'{"id":"ghost","version":"1","kinds":["rcs"]}'
    await farms.client.put(KEYS.farm("ghost"), record, acquire=ghost.id)
    await farms.clock.advance(5.0)
    made = await farms.add(50)
    failing = {"now": False}

    async def after(request: Request, response: Response) -> None:
        if takes_locks(request):
            failing["now"] = True
        if failing["now"] and not request.path.startswith("/v1/session"):
            raise OutcomeUnknown("lost")

    farms.faults["a"].after = after
    await farms.clock.advance(5.0)
    assert len(await farms.locks()) > len(a.works_on)
    farms.faults["a"].after = None
    await balanced(farms, 60.0)
    assert a.works_on == set(made)


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_r9_a_hand_over_that_failed_leaves_no_item_without_a_worker(
    farms: Farms, lost_answer: bool
) -> None:
    made = await farms.add(40)
    a = await farms.start("a")
    await balanced(farms)
    fault = once(hands_over, OutcomeUnknown("lost") if lost_answer else StoreUnavailable("never left"))
    if lost_answer:
        farms.faults["a"].after = fault.after  # type: ignore[attr-defined]
    else:
        farms.faults["a"].before = fault  # type: ignore[assignment]
    b = await farms.start("b")
    await balanced(farms, 60.0)
    assert a.works_on | b.works_on == set(made)
    assert len(b.works_on) > 5


async def test_a_release_that_failed_leaves_no_lock_behind(farms: Farms) -> None:
    made = await farms.add(3)
    await farms.start("a")
    await balanced(farms)

    def frees(request: Request) -> bool:
        return is_transaction(request) and b'"delete-cas"' in request.body

    farms.faults["a"].before = once(frees, StoreUnavailable("no"))  # type: ignore[assignment]
    await farms.remove(made[0])
    await balanced(farms, 60.0)
    assert set(await farms.locks()) == set(made[1:])


# -- hand-over (R9) ----------------------------------------------------------------------------
async def test_r9_a_farm_that_joins_receives_its_share_without_a_gap(farms: Farms) -> None:
    made = await farms.add(60)
    a, b = await farms.start("a"), await farms.start("b")
    await balanced(farms)
    c = await farms.start("c")
    held = set(made)
    for _ in range(200):
        await farms.clock.advance(0.1)
        held &= set(await farms.locks())
    assert held == set(made), "an item was without a holder"
    await balanced(farms)
    assert a.works_on | b.works_on | c.works_on == set(made)
    assert 10 <= len(c.works_on) <= 20
    counts = Counter(a.kind.starts + b.kind.starts + c.kind.starts)
    assert max(counts.values()) <= 2, "an item moved twice"


async def test_r9_at_rest_nothing_moves(farms: Farms) -> None:
    await farms.add(60)
    for name in "abc":
        await farms.start(name)
    await balanced(farms, 60.0)
    before = {item: entry.modify_index for item, entry in (await farms.locks()).items()}
    await balanced(farms, 600.0)
    assert {item: entry.modify_index for item, entry in (await farms.locks()).items()} == before


async def test_r9_a_dead_receiver_rolls_the_hand_over_back(farms: Farms) -> None:
    made = await farms.add(40)
    a = await farms.start("a")
    await balanced(farms)
    # A member whose presence outlives its session: what the moment of its death looks like.
    dead = await Session.open(farms.client, farms.clock, name="dead", ttl=10)
    record = f'{{"id":"b","version":"1","kinds":["rcs"],"session":"{dead.id}"}}'.encode()
    await farms.client.put(KEYS.farm("b"), record)
    await farms.client.destroy_session(dead.id)
    await farms.clock.advance(5.0)
    await farms.settled()
    assert a.works_on == set(made)
    assert set(await farms.holders()) == set(made)


async def test_r9_whoever_bears_a_lock_adopts_it_whomever_it_prefers(farms: Farms) -> None:
    a, b = await farms.start("a"), await farms.start("b")
    await farms.clock.advance(5.0)
    made = await farms.add(20)
    await balanced(farms)
    one = min(a.works_on)
    claim = a.kind.running[one][0]
    receiver = next(iter(b.kind.running.values()))[0].session
    await a.farm.loops[0].supervisor.stop([one])
    locker = Locker(a.client, a.keys, "rcs")
    await locker.hand_over([claim], receiver, Holder("farm", "b", "nonce"))
    await balanced(farms, 60.0)
    assert one in b.kind.starts, "fair shares may have brought it back since"
    assert a.works_on | b.works_on == set(made)


# -- many farms, much trouble --------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(4))
async def test_r3_r9_whatever_fails_in_the_end_every_item_is_worked_on_once(farms: Farms, seed: int) -> None:
    """Transactions get lost before and after the server for a minute; then the network is good again."""
    import random

    rng = random.Random(seed)
    made = await farms.add(60)
    running: list[ToyFarm] = []

    async def before(request: Request) -> None:
        if is_transaction(request) and rng.random() < 0.15:
            raise StoreUnavailable("lost on the way")

    async def after(request: Request, response: Response) -> None:
        if request.method != "GET" and rng.random() < 0.15:
            raise OutcomeUnknown("lost on the way back")

    for name in "abc":
        running.append(await farms.start(name))
        farms.faults[name].before, farms.faults[name].after = before, after
        await farms.clock.advance(20.0)
    for name in "abc":
        farms.faults[name].before = farms.faults[name].after = None
    await balanced(farms, 120.0)
    assert set().union(*(farm.works_on for farm in running)) == set(made)
