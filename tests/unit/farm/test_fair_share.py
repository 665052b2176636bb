"""R7, R9, R11: however few items there are, farms share them evenly, and then nothing moves any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

import pytest

from farmd.farm.claims import IDLE_SECONDS
from farmd.farm.members import SLICE, Features, Members, preferred
from farmd.farm.plan import FarmSettings, Item, Peer
from store.farms import Member
from tests.toys import KEYS, Farms
from tests.virtual import SeededIds, VirtualClock


def preferring(farm: str, members: Sequence[str], seed: int = 1) -> Iterator[str]:
    """Ids of items that all prefer one farm."""
    ids = SeededIds(seed)
    while True:
        if preferred(item := ids.new(), members) == farm:
            yield item


async def locks(farms: Farms) -> dict[str, int]:
    return {item: entry.modify_index for item, entry in (await farms.locks()).items()}


@pytest.mark.parametrize("count", [1, 2, 4, 5])
async def test_r9_few_items_are_shared_evenly_though_all_prefer_one_farm(farms: Farms, count: int) -> None:
    a, b = await farms.start("a"), await farms.start("b")
    await farms.clock.advance(5.0)
    for item, _ in zip(preferring("a", "ab"), range(count), strict=False):
        await farms.write(item)
    await farms.clock.advance(20.0)
    await farms.settled()
    assert sorted((len(a.works_on), len(b.works_on))) == [count // 2, (count + 1) // 2]
    before = await locks(farms)
    await farms.clock.advance(300.0)
    assert await locks(farms) == before, "an item moved at rest"


async def test_r9_a_burst_of_new_items_moves_nothing_but_the_overflow(farms: Farms) -> None:
    a, b = await farms.start("a"), await farms.start("b")
    await farms.clock.advance(5.0)
    for item, _ in zip(preferring("a", "ab"), range(30), strict=False):
        await farms.write(item)
        await farms.clock.advance(0.01)
    await farms.clock.advance(20.0)
    assert (len(a.works_on), len(b.works_on)) == (15, 15)
    assert sum(farm.metric("farmd_lock_events_total", event="handed_over") for farm in (a, b)) == 15
    assert sum(farm.metric("farmd_lock_events_total", event="rejected") for farm in (a, b)) == 0


async def test_r9_what_a_member_may_not_have_counts_for_nobodys_share_but_its_owners(farms: Farms) -> None:
    """Six special items that only b knows: the six plain ones are a's, though all of them prefer b."""
    b, a = await farms.start("b", features=("gpu",)), await farms.start("a")
    await farms.clock.advance(5.0)
    chosen = preferring("b", "ab")
    special = [next(chosen) for _ in range(6)]
    plain = [next(chosen) for _ in range(6)]
    for item in special:
        await farms.write(item, needs=["gpu"])
    for item in plain:
        await farms.write(item)
    await farms.clock.advance(20.0)
    await farms.settled()
    assert (b.works_on, a.works_on) == (set(special), set(plain))


async def test_r9_a_farm_settles_from_the_moment_when_it_has_read_everything() -> None:
    clock = VirtualClock()
    members = members_of(clock)

    def settled(*, starting: bool) -> bool:
        told = Member(id="b", version="1", kinds=["rcs"], session="s", starting=starting)
        members.farms = SimpleNamespace(entries={"b": SimpleNamespace(record=told)})  # type: ignore[assignment]
        return members.peers()["b"].settled

    assert not settled(starting=True)
    await clock.advance(60.0)
    assert not settled(starting=True)
    assert not settled(starting=False), "it has not begun to claim yet"
    await clock.advance(members.settings.stable)
    assert settled(starting=False)


async def test_r23_a_farm_that_starts_for_long_costs_the_others_no_rounds(farms: Farms) -> None:
    await farms.add(2)
    a = await farms.start("a")
    await farms.client.delete(KEYS.sentinel(KEYS.tree("nodes")))
    await farms.start("b")
    await farms.clock.advance(60.0)
    rounds, items = 0, a.kind.items

    def counted() -> Mapping[str, Item]:
        nonlocal rounds
        rounds += 1
        return items()

    a.kind.items = counted  # type: ignore[method-assign]
    await farms.clock.advance(300.0)
    assert 300.0 / IDLE_SECONDS - 1 <= rounds <= 300.0 / IDLE_SECONDS + 1


# -- the computation -----------------------------------------------------------------------------
class SlicedClock(VirtualClock):
    """Counts how often the loop gets its turn."""

    turns = 0

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        await super().sleep(seconds)


def members_of(clock: VirtualClock, features: tuple[str, ...] = ()) -> Members:
    known = Features(features)
    return Members("rcs", FarmSettings(name="a"), known, SimpleNamespace(entries={}), clock)  # type: ignore[arg-type]


def peers(**features: frozenset[str]) -> dict[str, Peer]:
    return {name: Peer(name, f"s-{name}", True, False, known) for name, known in features.items()}


NOTHING, GPU = frozenset[str](), frozenset({"gpu"})


def items(count: int, needs: tuple[str, ...] = (), seed: int = 1) -> dict[str, Item]:
    ids = SeededIds(seed)
    return {(item := ids.new()): Item(item, 1, needs=needs) for _ in range(count)}


def counts(members: Members, names: str) -> list[int]:
    return [list(members.targets.values()).count(name) for name in names]


async def test_r11_who_knows_more_gets_the_rarer_items_and_fewer_of_the_others() -> None:
    members = members_of(VirtualClock())
    everything = items(40, ("gpu",)) | items(50, seed=2)
    await members.share(everything, peers(a=NOTHING, b=GPU, c=NOTHING))
    assert counts(members, "abc") == [25, 40, 25]
    assert all(members.targets[item] == "b" for item in items(40, ("gpu",)))


async def test_r11_members_that_know_different_things_agree_on_whose_each_item_shall_be() -> None:
    everything = items(40, ("gpu",)) | items(50, seed=2)
    knowing, other = members_of(VirtualClock(), ("gpu",)), members_of(VirtualClock())
    all_of_them = peers(a=GPU, b=GPU, c=NOTHING)
    await knowing.share(everything, all_of_them)
    await other.share(dict(reversed(everything.items())), dict(reversed(all_of_them.items())))
    assert knowing.targets == other.targets


async def test_r11_what_nobody_knows_is_nobodys() -> None:
    members = members_of(VirtualClock())
    unknown = items(3, ("tpu",))
    await members.share(unknown | items(4, seed=2), peers(a=NOTHING, b=GPU))
    assert {members.targets[item] for item in unknown} == {""}
    assert counts(members, "ab") == [2, 2]


async def test_r23_shares_follow_items_and_members_and_are_not_computed_otherwise() -> None:
    members = members_of(VirtualClock())
    some, both = items(9), peers(a=NOTHING, b=NOTHING)
    await members.share(some, both)
    first = members.targets
    await members.share(dict(some), both)
    assert members.targets is first
    del some[next(iter(some))]
    await members.share(some, both)
    assert sorted(counts(members, "ab")) == [4, 4]
    await members.share(some, peers(a=NOTHING))
    assert counts(members, "ab") == [8, 0]
    await members.share(some, both, draining=True)
    assert counts(members, "ab") == [0, 8]


async def test_r23_ten_thousand_items_are_dealt_out_in_slices() -> None:
    clock = SlicedClock()
    members = members_of(clock)
    await members.share(items(10_000), peers(**dict.fromkeys("abcde", NOTHING)))
    assert counts(members, "abcde") == [2000] * 5
    assert clock.turns >= 10_000 // SLICE + 5
