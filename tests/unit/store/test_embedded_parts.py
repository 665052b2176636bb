"""The parts of the embedded server that the contract cases reach only in passing."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.embedded.answers import TableWatches
from store.embedded.encoding import InvalidDuration, parse
from store.embedded.kv import KeyValues, OrderedMap, Pair
from tests.contract import faces
from tests.fleet import LIMIT

KEY = st.text(alphabet="ab/", min_size=1, max_size=5)


def filled(keys: set[str]) -> OrderedMap[str]:
    made: OrderedMap[str] = OrderedMap()
    for key in keys:
        made.put(key, key)
    return made


@given(
    st.sets(st.text(alphabet="ab/é\U0010ffff", max_size=4)), st.text(alphabet="ab/é\U0010ffff", max_size=3)
)
def test_reading_a_prefix_is_reading_what_starts_with_it(keys: set[str], prefix: str) -> None:
    expected = sorted(key for key in keys if key.startswith(prefix))
    found = filled(keys)
    assert found.under(prefix) == found.values_under(prefix) == expected
    assert found.drop_under(prefix) == [(key, key) for key in expected]
    assert list(found) == sorted(keys - set(expected))


class Node:
    """A radix tree as Consul's index is one, made the slow way: by shared beginnings."""

    def __init__(self, keys: list[str], depth: int) -> None:
        ends = [key + "\0" for key in keys] or [""]
        shared = common(min(ends), max(ends))
        self.depth = depth if depth == 0 else len(shared)
        self.text = "" if depth == 0 else shared
        groups: dict[str, list[str]] = {}
        for key in keys:
            if len(key) + 1 > self.depth:
                groups.setdefault((key + "\0")[self.depth], []).append(key)
        self.edges = {char: Node(group, self.depth + 1) for char, group in groups.items()}


def common(left: str, right: str) -> str:
    length = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return left[:length]


def woken_by(keys: set[str], absent: str) -> set[str]:
    """The keys under the node where a search for ``absent`` ends."""
    node, under = Node(sorted(keys), 0), set(keys)
    search = absent + "\0"
    while node.text == search[: node.depth] and search[node.depth :]:
        edge = node.edges.get(search[node.depth])
        if edge is None:
            break
        under = {key for key in under if (key + "\0").startswith(search[: node.depth + 1])}
        node = edge
    return under


@given(st.sets(KEY), KEY)
def test_a_watch_on_nothing_hangs_where_the_search_in_a_radix_tree_ends(keys: set[str], absent: str) -> None:
    keys.discard(absent)
    watched = filled(keys).watched_for(absent)
    assert absent.startswith(watched)
    assert {key for key in keys if key.startswith(watched)} == woken_by(keys, absent)


@given(st.lists(st.tuples(st.sampled_from(["write", "delete", "tree"]), KEY)), st.integers(0, 10))
def test_a_change_that_is_taken_back_leaves_no_trace(steps: list[tuple[str, str]], kept: int) -> None:
    table = KeyValues()

    def play(index: int, kind: str, key: str) -> None:
        if kind == "write":
            session = "s" if len(key) % 2 else ""
            table.write(
                index,
                Pair(
                    lock_index=0,
                    key=key,
                    flags=index,
                    value=b"",
                    session=session,
                    create_index=0,
                    modify_index=0,
                ),
            )
        elif kind == "delete":
            table.delete(index, key)
        else:
            table.delete_under(index, key)

    for index, step in enumerate(steps[:kept], 1):
        table.begin()
        play(index, *step)
        table.commit()
    before = (table.dump(), table.index, table.held_by("s"))
    table.begin()
    for step in steps[kept:]:
        play(100, *step)
    table.rollback()
    assert (table.dump(), table.index, table.held_by("s")) == before
    assert table.held_by("s") == sorted(pair.key for pair in table.under("") if pair.session == "s")


@given(st.lists(KEY), st.lists(KEY), st.lists(KEY))
def test_a_change_wakes_those_who_wait_for_it_once_and_nobody_else(
    exact: list[str], prefixes: list[str], changed: list[str]
) -> None:
    watches, woken = TableWatches(), []
    cancels = [watches.key(key, lambda key=key: woken.append(("key", key))) for key in exact]
    cancels += [watches.prefix(key, lambda key=key: woken.append(("prefix", key))) for key in prefixes]
    watches.changed(changed)
    expected = [("key", key) for key in exact if key in changed]
    expected += [("prefix", key) for key in prefixes if any(each.startswith(key) for each in changed)]
    assert sorted(woken) == sorted(expected)
    for cancel in cancels:
        cancel()
    assert len(watches) == 0
    watches.changed(changed)
    assert len(woken) == len(expected)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("10s", 10**10), ("1m30.5s", 90_500_000_000), ("-1.5h", -5_400_000_000_000), ("0", 0), ("+5ns", 5),
     (".5us", 500), ("1µs", 1000), ("1h1m1s1ms1us1ns", 3_661_001_001_001)],
)  # fmt: skip
def test_durations_are_gos(text: str, nanoseconds: int) -> None:
    assert parse(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", 'time: invalid duration ""'),
        ("x", 'time: invalid duration "x"'),
        (".s", 'time: invalid duration ".s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("-", 'time: invalid duration "-"'),
        ("9999999999h", 'time: invalid duration "9999999999h"'),
    ],
)
def test_what_is_no_duration_is_told_in_gos_words(text: str, complaint: str) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse(text)
    assert str(caught.value) == complaint


async def test_fifty_thousand_keys_are_one_answer() -> None:
    async with faces.embedded_inprocess() as face:
        table = face.transport._server.state.kv  # type: ignore[attr-defined]
        table.begin()
        for number in range(50_000):
            key = f"pods/{number * 7919 % 50_000:05}"
            table.write(
                9, Pair(lock_index=0, key=key, flags=0, value=b"x" * 200, create_index=0, modify_index=0)
            )
        table.commit()
        page = await face.client.list("pods/")
        assert [item.key for item in page.items] == [f"pods/{number:05}" for number in range(50_000)]
        assert len((await face.client.keys("pods/123")).items) == 100


async def test_a_body_that_says_it_is_huge_is_refused_unread() -> None:
    async with faces.embedded_http() as face:
        address = face.transport._address  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"PUT /v1/kv/a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), 5)
        assert line == b"HTTP/1.1 413 Request Entity Too Large\r\n"
        writer.close()


async def test_a_client_that_goes_away_takes_its_watch_along() -> None:
    async with faces.embedded_http() as face:
        address = face.transport._address  # type: ignore[attr-defined]
        async with aiohttp.ClientSession() as session:
            watch = asyncio.ensure_future(session.get(f"{address.url}/v1/kv/a?index=99&wait=60s"))
            await face.client.leader()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        async with asyncio.timeout(LIMIT):
            while any(task.get_coro().__name__ == "_expire" for task in asyncio.all_tasks()):  # type: ignore[union-attr]
                await asyncio.sleep(0.01)


def test_keys_are_ordered_as_their_bytes() -> None:
    keys = ["a", "é", "z", "\U0001f600", "\uffff", "B"]
    made = filled(set(keys))
    assert list(made) == sorted(keys, key=lambda key: key.encode())
    assert bisect_left(list(made), "é") == list(made).index("é")
