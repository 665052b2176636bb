"""R7: every farm computes the same preference, and a member that comes or goes moves only its own."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from farmd.farm.members import Shares, preferred, ranking, rooms, score

MEMBERS = st.lists(st.text("abc-0123456789", min_size=1, max_size=8), min_size=1, max_size=6, unique=True)
ITEMS = [f"{number:016x}" for number in range(200)]


@given(MEMBERS, st.randoms(use_true_random=False))
def test_r7_the_order_of_members_does_not_matter(members: list[str], shuffle: object) -> None:
    other = sorted(members, reverse=True)
    assert [preferred(item, members) for item in ITEMS] == [preferred(item, other) for item in ITEMS]


@given(MEMBERS, st.text("xyz", min_size=1, max_size=4))
def test_r7_a_new_member_takes_only_what_prefers_it(members: list[str], joined: str) -> None:
    for item in ITEMS:
        before, after = preferred(item, members), preferred(item, [*members, joined])
        assert after in (before, joined)


@given(MEMBERS)
def test_r7_what_a_lost_member_had_goes_to_the_others_and_nothing_else_moves(members: list[str]) -> None:
    gone, rest = members[0], members[1:]
    for item in ITEMS:
        before = preferred(item, members)
        if before != gone:
            assert preferred(item, rest) == before


def test_r7_members_get_like_shares() -> None:
    members = [f"farm-{number}" for number in range(4)]
    whole = [f"{number:016x}" for number in range(10_000)]
    counts = [sum(preferred(item, members) == member for item in whole) for member in members]
    assert sum(counts) == len(whole)
    assert min(counts) > 0.9 * len(whole) / len(members)


def test_nobody_is_preferred_where_there_is_nobody() -> None:
    assert preferred("00", []) == ""


# -- even loads ------------------------------------------------------------------------------------
def dealt(items: list[str], members: list[str], loads: dict[str, int] | None = None) -> dict[str, str]:
    """Whose each item shall be."""
    wanted: dict[str, list[str]] = {member: [] for member in members}
    for item in items:
        wanted[preferred(item, members)].append(item)
    room = rooms({member: len(those) for member, those in wanted.items()}, loads or dict.fromkeys(members, 0))
    return {item: preferred(item, members) for item in items} | Shares(wanted, room).moved()


def counts(targets: dict[str, str], members: list[str]) -> list[int]:
    return [list(targets.values()).count(member) for member in members]


@given(MEMBERS, st.integers(0, 60))
def test_r9_all_members_get_the_same_number_of_items_or_one_more(members: list[str], number: int) -> None:
    held = counts(dealt(ITEMS[:number], members), members)
    assert sum(held) == number
    assert max(held) - min(held) <= 1


@given(MEMBERS, st.randoms(use_true_random=False))
def test_r7_whose_an_item_shall_be_depends_on_no_order(members: list[str], shuffle: random.Random) -> None:
    items, others = list(ITEMS), list(members)
    shuffle.shuffle(items)
    shuffle.shuffle(others)
    assert dealt(items, others) == dealt(ITEMS, members)


@given(MEMBERS)
def test_r9_no_item_goes_past_a_member_that_has_a_lesser_one(members: list[str]) -> None:
    targets = dealt(ITEMS, members)
    for item, target in targets.items():
        order = ranking(item, members)
        for better in order[: order.index(target)]:
            least = min(score(better, other) for other in ITEMS if targets[other] == better)
            assert score(better, item) < least, f"{item} should be {better}'s"


@given(MEMBERS, st.text("xyz", min_size=1, max_size=4))
def test_r9_a_member_that_comes_changes_little_more_than_its_own_share(
    members: list[str], joined: str
) -> None:
    before, after = dealt(ITEMS, members), dealt(ITEMS, [*members, joined])
    changed = sum(before[item] != after[item] for item in ITEMS)
    own = list(after.values()).count(joined)
    assert own <= changed <= own + len(ITEMS) // 5


@given(
    st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1)
)
def test_r9_unequal_loads_are_filled_up_from_below(members: dict[str, tuple[int, int]]) -> None:
    wanted = {member: wants for member, (wants, _) in members.items()}
    loads = {member: load for member, (_, load) in members.items()}
    room = rooms(wanted, loads)
    assert sum(room.values()) == sum(wanted.values())
    filled = {member: loads[member] + more for member, more in room.items()}
    for member, more in room.items():
        assert more >= 0
        if more:
            assert filled[member] - min(filled.values()) <= 1, "it was given what a lesser one could have had"
