"""Which lines of a list a request shows."""

from __future__ import annotations

import pytest

from farmd.tables.model import Column
from farmd.web.lists import ListLine
from farmd.web.paging import Query, query, selected
from store.errors import InputInvalid

COLUMNS = (Column("NAME", lambda row: row[0]), Column("PODS", lambda row: str(row[1])))
LINES = [
    ListLine(
        f"web-{number:03}",
        "converged" if number % 3 else "blocked",
        f"web-{number:03} rack=r{number % 2}",
        row,
    )
    for number in range(250)
    for row in [(f"web-{number:03}", number % 50)]
]


def walked(**asked: object) -> list[str]:
    """All pages of a query, one after the other."""
    names, cursor = list[str](), ""
    while True:
        page = selected(LINES, Query(cursor=cursor, limit=40, **asked), COLUMNS)  # type: ignore[arg-type]
        names += [line.name for line in page.lines]
        if not page.next:
            return names
        cursor = page.next


@pytest.mark.parametrize("sort", ["", "name", "-name", "pods", "-pods"])
def test_pages_follow_one_another_without_a_gap_or_a_repetition(sort: str) -> None:
    names = walked(sort=sort)
    assert sorted(names) == [line.name for line in LINES]
    pods = [int(name[4:]) % 50 for name in names]
    if "pods" in sort:
        assert pods == sorted(pods, reverse=sort.startswith("-"))


def test_a_page_begins_after_its_cursor_whatever_went_meanwhile() -> None:
    first = selected(LINES, Query(limit=10), COLUMNS)
    left = [line for line in LINES if line.name not in {"web-003", "web-009"}]
    assert selected(left, Query(limit=1, cursor=first.next), COLUMNS).lines[0].name == "web-010"


def test_all_words_must_occur_and_states_are_counted_before_one_is_chosen() -> None:
    found = selected(LINES, Query(text="rack=r1 web-0", state="blocked", limit=5), COLUMNS)
    assert (found.matching, found.total) == (17, 250)
    assert found.states == {"blocked": 17, "converged": 33}


@pytest.mark.parametrize(
    "said",
    [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "٣"}, {"q": "x" * 201}],
)
def test_what_cannot_be_asked_for_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(InputInvalid, match=r"found .*, expected"):
        query(said)


@pytest.mark.parametrize("asked", [Query(sort="colour"), Query(cursor="nonsense"), Query(cursor="W10")])
def test_an_unknown_column_or_cursor_is_refused(asked: Query) -> None:
    with pytest.raises(InputInvalid, match="expected"):
        selected(LINES, asked, COLUMNS)
