"""Locks on items: taken in batches, never twice by one session, handed over whole (R3, R8, R9, R12)."""

from __future__ import annotations

import pytest

from store import operations
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import Conflict, Locked, NotRegistered, OutcomeUnknown, TransactionRejected
from store.keys import Keys
from store.locks import Claim, Holder, Locker, MutationLocker, batch_size
from store.ports import Request, Response
from store.registration import read_schema, register_cluster
from tests.toys import Faulty, is_transaction
from tests.virtual import SeededIds, VirtualClock, embedded_server

KEYS = Keys("t/")
ME, OTHER = Holder("farm", "a", "n1"), Holder("farm", "b", "n2")


class Store:
    """A registered store with two sessions, and a locker whose transport can lose answers."""

    async def set_up(self) -> None:
        self.clock = VirtualClock()
        server = embedded_server(self.clock)
        self.transport = Faulty(InProcessTransport(server))
        self.client = ConsulClient(self.transport, clock=self.clock)
        self.plain = ConsulClient(InProcessTransport(server), clock=self.clock)
        await register_cluster(self.plain, KEYS, SeededIds())
        self.schema = (await read_schema(self.plain, KEYS)).modify_index
        self.mine = await self.plain.create_session(name="a", ttl=10)
        self.other = await self.plain.create_session(name="b", ttl=10)
        self.locker = Locker(self.client, KEYS, "rcs")
        self.transport.sent.clear()

    async def take(self, *items: str, holder: Holder = ME) -> tuple[list[Claim], list[str]]:
        session = self.mine if holder is ME else self.other
        return await self.locker.take(items, session, holder, self.schema)

    async def value(self, item: str) -> bytes | None:
        entry = await self.plain.read(KEYS.lock("rcs", item))
        return entry.value if entry is not None else None

    @property
    def transactions(self) -> int:
        return sum(is_transaction(request) for request in self.transport.sent)


@pytest.fixture
async def store() -> Store:
    made = Store()
    await made.set_up()
    return made


def items_of(claims: list[Claim]) -> list[str]:
    return [claim.item for claim in claims]


async def test_a_batch_is_one_transaction_and_every_claim_knows_its_index(store: Store) -> None:
    claims, refused = await store.take(*[f"i{number:02}" for number in range(batch_size())])
    assert (len(claims), refused, store.transactions) == (batch_size(), [], 1)
    for claim in claims:
        entry = await store.plain.read(claim.key)
        assert entry is not None
        assert (entry.modify_index, entry.session, entry.value) == (claim.index, store.mine, b"farm/a/n1")


async def test_r3_the_same_session_cannot_take_a_lock_twice(store: Store) -> None:
    (first,), _ = await store.take("x")
    again = await store.locker.take(["x"], store.mine, Holder("farm", "a", "n9"), store.schema)
    assert again == ([], ["x"])
    entry = await store.plain.read(first.key)
    assert entry is not None
    assert (entry.modify_index, entry.value) == (first.index, b"farm/a/n1"), "the value is never rewritten"


async def test_r8_what_is_refused_is_dropped_and_the_rest_tried_again_at_once(store: Store) -> None:
    await store.take("b", "d", holder=OTHER)
    store.transport.sent.clear()
    claims, refused = await store.take("a", "b", "c", "d", "e")
    assert (items_of(claims), refused, store.transactions) == (["a", "c", "e"], ["b", "d"], 2)


async def test_r8_when_all_is_refused_nothing_is_written(store: Store) -> None:
    await store.take("a", "b", holder=OTHER)
    assert await store.take("a", "b") == ([], ["a", "b"])


async def test_a_dead_session_gets_nothing(store: Store) -> None:
    await store.plain.destroy_session(store.mine)
    claims, refused = await store.take("a", "b")
    assert (claims, refused) == ([], ["a", "b"])
    assert await store.value("a") is None


async def test_a_changed_schema_stops_claiming(store: Store) -> None:
    await store.plain.put(KEYS.schema, b'{"version":2,"oldest":1}')
    with pytest.raises(NotRegistered):
        await store.take("a")
    assert await store.value("a") is None


@pytest.mark.parametrize("applied", [True, False])
async def test_r3_after_an_unknown_outcome_the_keys_are_read_before_anything_is_written(
    store: Store, applied: bool
) -> None:
    await store.take("b", holder=OTHER)
    store.transport.sent.clear()

    async def before(request: Request) -> None:
        if is_transaction(request) and not applied:
            raise OutcomeUnknown("cut")

    async def after(request: Request, response: Response) -> None:
        if is_transaction(request) and response.status == 200:
            raise OutcomeUnknown("cut")

    store.transport.before, store.transport.after = before, after
    claims, refused = await store.take("a", "b", "c")
    assert items_of(claims) == (["a", "c"] if applied else [])
    assert sorted(refused) == (["b"] if applied else ["a", "b", "c"])
    sent = [is_transaction(request) for request in store.transport.sent]
    assert sent == sorted(sent, reverse=True), "after the unanswered transaction, nothing but reads"
    for claim in claims:
        entry = await store.plain.read(claim.key)
        assert entry is not None
        assert entry.modify_index == claim.index


async def test_r3_a_lock_of_an_earlier_claim_of_this_session_is_not_taken_for_this_one(store: Store) -> None:
    await store.take("a")

    async def before(request: Request) -> None:
        if is_transaction(request):
            raise OutcomeUnknown("cut")

    store.transport.before = before
    claims, refused = await store.locker.take(["a"], store.mine, Holder("farm", "a", "n9"), store.schema)
    assert (claims, refused) == ([], ["a"])


# -- fences ------------------------------------------------------------------------------------
async def write_under(store: Store, claim: Claim) -> bool:
    try:
        await store.plain.transaction([*claim.fence(), operations.put("t/written", b"")])
    except TransactionRejected:
        return False
    return True


async def test_r12_a_fence_holds_for_its_own_claim_only(store: Store) -> None:
    (claim,), _ = await store.take("a")
    assert await write_under(store, claim)
    await store.locker.free([claim])
    assert not await write_under(store, claim), "freed"
    (later,), _ = await store.take("a")
    assert not await write_under(store, claim), "the same session took it again: a leaked worker"
    assert await write_under(store, later)
    await store.plain.destroy_session(store.mine)
    assert not await write_under(store, later), "lost"


async def test_freeing_touches_no_later_claim(store: Store) -> None:
    (claim,), _ = await store.take("a")
    await store.locker.free([claim])
    await store.locker.free([claim])
    (later,), _ = await store.take("a", holder=OTHER)
    await store.locker.free([claim])
    assert await write_under(store, later)


# -- hand-over -----------------------------------------------------------------------------------
async def test_r9_a_hand_over_is_one_transaction_and_the_receiver_finds_its_locks(store: Store) -> None:
    claims, _ = await store.take("a", "b", "c")
    store.transport.sent.clear()
    await store.locker.hand_over(claims[:2], store.other, OTHER)
    assert store.transactions == 1
    adopted = await store.locker.borne_by(store.other)
    assert items_of(adopted) == ["a", "b"]
    assert [await write_under(store, claim) for claim in adopted] == [True, True]
    assert [await write_under(store, claim) for claim in claims] == [False, False, True]
    assert {claim.nonce for claim in adopted} == {OTHER.nonce}


async def test_r9_a_dead_receiver_rolls_all_of_it_back(store: Store) -> None:
    claims, _ = await store.take("a", "b")
    await store.plain.destroy_session(store.other)
    with pytest.raises(TransactionRejected):
        await store.locker.hand_over(claims, store.other, OTHER)
    assert [await write_under(store, claim) for claim in claims] == [True, True]


async def test_r9_a_claim_that_is_lost_by_now_rolls_all_of_it_back(store: Store) -> None:
    claims, _ = await store.take("a", "b")
    await store.plain.delete(claims[0].key)
    with pytest.raises(TransactionRejected):
        await store.locker.hand_over(claims, store.other, OTHER)
    assert await write_under(store, claims[1])
    assert await store.locker.borne_by(store.other) == []


async def test_mutation_locks_and_other_kinds_are_not_adopted(store: Store) -> None:
    for key in (KEYS.mutation_lock("rcs", "a"), KEYS.lock("rollouts", "a"), "t/locks/rcs/x/y/z"):
        assert await store.plain.put(key, b"farm/a/n", acquire=store.mine)
    assert await store.locker.borne_by(store.mine) == []


# -- mutation locks --------------------------------------------------------------------------------
async def test_r13_a_mutation_lock_names_its_holder_to_whoever_is_refused(store: Store) -> None:
    locker = MutationLocker(store.plain, KEYS, "rcs")
    claim = await locker.take("a", store.mine, Holder("rollout", "7", "n@1"))
    with pytest.raises(Locked) as refused:
        await locker.take("a", store.other, OTHER)
    assert refused.value.fields["holder"] == "rollout/7"
    assert isinstance(refused.value, Conflict)
    with pytest.raises(Locked):
        await locker.take("a", store.mine, ME)
    assert await write_under(store, claim)


async def test_r13_a_mutation_lock_excludes_no_ownership(store: Store) -> None:
    await MutationLocker(store.plain, KEYS, "rcs").take("a", store.other, OTHER)
    assert items_of((await store.take("a"))[0]) == ["a"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"farm/a/n", Holder("farm", "a", "n")),
        (b"", Holder("unknown", "", "")),
        (b"hand made", Holder("unknown", "hand made", "")),
        (b"a/b/c/d", Holder("unknown", "a/b/c/d", "")),
        (b"\xff/x/y", Holder("\ufffd", "x", "y")),
    ],
)
def test_whatever_a_lock_says_it_names_somebody(value: bytes, expected: Holder) -> None:
    assert Holder.parse(value) == expected


async def test_r12_a_claim_knows_its_fence_in_a_rejection_wherever_the_fence_stands(store: Store) -> None:
    (claim,), _ = await store.take("a")
    put, absent = operations.put("t/x", b"1"), operations.check_not_exists(claim.key)
    with pytest.raises(TransactionRejected) as other:
        await store.client.transaction([absent, put, *claim.fence()])
    assert not claim.refused(other.value), "another operation was refused, in the place of the fence"
    await store.plain.delete(claim.key)
    with pytest.raises(TransactionRejected) as lost:
        await store.client.transaction([put, absent, *claim.fence()])
    assert claim.refused(lost.value)
