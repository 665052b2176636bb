"""Which lines of a list a request shows: searched, sorted, and one page of them. Pure.

A cursor holds the sort key of the last line of a page, so that the next page begins after it, whatever came
or went meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from farmd.tables.model import Column
from farmd.web.lists import ListLine
from store.errors import InputInvalid

PAGE, LARGEST_PAGE = 100, 1000
LONGEST_SEARCH = 200
FEW = 500
Key = tuple[int, float, str, str]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """``text``: words that all must occur; ``sort``: a column's title in lower case, ``-`` before it turns it
    round; empty: by name."""

    text: str = ""
    state: str = ""
    sort: str = ""
    cursor: str = ""
    limit: int = PAGE


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """One page: its lines, how many match of how many, the states of all, and the cursor of the next page."""

    lines: list[ListLine]
    matching: int
    total: int
    states: dict[str, int]
    next: str = ""


def query(said: Mapping[str, str]) -> Query:
    """What a request asks for.

    Raises:
        InputInvalid: naming the parameter, what was found and what was expected.
    """
    text = said.get("q", "").strip().lower()
    if len(text) > LONGEST_SEARCH:
        raise InputInvalid(f"q: found {len(text)} characters, expected at most {LONGEST_SEARCH}", field="q")
    return Query(
        text=text,
        state=said.get("state", ""),
        sort=said.get("sort", ""),
        cursor=said.get("cursor", ""),
        limit=limit(said),
    )


def limit(said: Mapping[str, str]) -> int:
    """How many lines a request asks for.

    Raises:
        InputInvalid: it is no number, or too large.
    """
    found = said.get("limit", str(PAGE))
    if not (found.isascii() and found.isdigit() and 0 < int(found[:9]) <= LARGEST_PAGE):
        expected = f"a number from 1 to {LARGEST_PAGE}"
        raise InputInvalid(f"limit: found {found!r}, expected {expected}", field="limit")
    return int(found)


async def found(lines: Sequence[ListLine], asked: Query, columns: Sequence[Column]) -> Selected:
    """As ``selected``; of a long list in a thread, because searching and sorting it takes a while."""
    if len(lines) <= FEW:
        return selected(lines, asked, columns)
    return await asyncio.to_thread(selected, lines, asked, columns)


def selected(lines: Sequence[ListLine], asked: Query, columns: Sequence[Column]) -> Selected:
    """The page that a query asks for; ``lines`` are sorted by name.

    Raises:
        InputInvalid: it sorts by no column, or has a cursor of another list.
    """
    words = asked.text.split()
    found = [line for line in lines if all(word in line.text for word in words)] if words else list(lines)
    states = Counter(line.state for line in found)
    if asked.state:
        found = [line for line in found if line.state == asked.state]
    key, turned = _order(asked.sort, columns)
    if asked.sort:
        found.sort(key=key, reverse=turned)
    start = _start(found, key, asked.cursor, turned=turned)
    page = found[start : start + asked.limit]
    more = start + len(page) < len(found)
    return Selected(
        lines=page,
        matching=len(found),
        total=len(lines),
        states=dict(sorted(states.items())),
        next=_cursor(key(page[-1])) if more and page else "",
    )


def _order(sort: str, columns: Sequence[Column]) -> tuple[Callable[[ListLine], Key], bool]:
    """The sort key of a line, and whether the largest comes first."""
    turned, name = sort.startswith("-"), sort.removeprefix("-")
    if not name:
        return (lambda line: (1, 0.0, line.name, line.name)), turned
    column = next((each for each in columns if each.title.lower() == name), None)
    if column is None:
        known = ", ".join(each.title.lower() for each in columns)
        raise InputInvalid(f"sort: found {name!r}, expected one of {known}", field="sort")
    told = column.order or column.text
    return (lambda line: (*_natural(told(line.row)), line.name)), turned


def _natural(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, also those at the beginning of a text such as ``3/10``."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    head = str(value).partition("/")[0]
    return (0, float(head), "") if head.isascii() and head.isdigit() else (1, 0.0, str(value))


def _start(found: Sequence[ListLine], key: Callable[[ListLine], Key], cursor: str, *, turned: bool) -> int:
    if not cursor:
        return 0
    after = _after(cursor)
    if not turned:
        return bisect.bisect_right(found, after, key=key)
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        if key(found[middle]) >= after:
            low = middle + 1
        else:
            high = middle
    return low


def _cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def _after(cursor: str) -> Key:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found: Key = msgspec.json.decode(base64.b64decode(padded, "-_", validate=True), type=Key)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        text = "cursor: found one that this farm did not create, expected the cursor of an earlier answer"
        raise InputInvalid(text, field="cursor") from error
    return found
