"""R7: every farm computes the same preference, and a member that comes or goes moves only its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farmd.farm.preference import preferred

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
