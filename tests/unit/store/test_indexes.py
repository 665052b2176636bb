"""Sets of indexes as ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.indexes import Indexes

SOME = st.sets(st.integers(0, 60))


@given(st.lists(st.integers(0, 60)), SOME, st.integers(0, 60), st.integers(0, 60))
def test_indexes_are_a_set_in_whatever_order_they_come(
    added: list[int], told: set[int], start: int, stop: int
) -> None:
    found, wanted = Indexes(",".join(map(str, told))), told.union(added)
    for index in added:
        found.add(index)
    assert list(found) == sorted(wanted)
    assert len(found) == len(wanted)
    assert {index for index in range(61) if index in found} == wanted
    assert found.count(range(start, stop)) == len(wanted.intersection(range(start, stop)))
    assert list(found.gaps(stop)) == [index for index in range(stop) if index not in wanted]
    assert str(Indexes(str(found))) == str(found)


def test_neighbours_are_one_range() -> None:
    assert str(Indexes("44,0-1", "2,40", "41")) == "0-2,40-41,44"


def test_an_array_that_is_done_is_one_range_however_long() -> None:
    found = Indexes("1-99999")
    found.add(0)
    assert str(found) == "0-99999"
    assert not list(found.gaps(100_000))
