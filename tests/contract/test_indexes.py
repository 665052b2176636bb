"""Indexes and blocking queries: what every watch rests on (R20, R23).

A wait that must not end early is proved by an order of events, not by a time: the watch is still
parked after a later, relevant write has been made and seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from store.consul.client import ConsulClient
from tests.contract.faces import Face
from tests.fleet import in_time

LONG = 60.0


async def parked(face: Face, watch: Awaitable[object]) -> asyncio.Task[object]:
    """Start a watch and let it reach the server."""
    task = asyncio.ensure_future(watch)
    for _ in range(3):
        await face.raw("GET", "/v1/status/leader")
    await asyncio.sleep(0.05)  # only makes a failure likelier to show; nothing rests on it
    return task  # type: ignore[return-value]


async def test_the_index_of_a_prefix_never_goes_down_while_things_come_and_go(face: Face) -> None:
    seen = [(await face.client.list(face.prefix)).index]
    for step in range(20):
        await face.client.put(face.key(f"{step % 3}"), str(step).encode())
        seen.append((await face.client.list(face.prefix)).index)
        if step % 4 == 3:
            await face.client.delete(face.key(f"{step % 3}"))
            seen.append((await face.client.list(face.prefix)).index)
    # The first answer was about a prefix that never was, and bears the table's index.
    assert seen[1:] == sorted(seen[1:])
    assert len(set(seen[1:])) == len(seen[1:])


async def test_writes_elsewhere_do_not_move_the_index_of_a_prefix_that_has_keys(face: Face) -> None:
    await face.client.put(face.key("a/1"), b"1")
    before = (await face.client.list(face.key("a/"))).index
    await face.client.put(face.key("b"), b"1")
    await face.client.delete(face.key("b"))
    assert (await face.client.list(face.key("a/"))).index == before
    assert (await face.client.keys(face.key("a/"))).index == before


async def test_an_emptied_prefix_keeps_the_index_of_its_deletion(face: Face) -> None:
    await face.client.put(face.key("a/1"), b"1")
    await face.client.delete(face.key("a/1"))
    emptied = (await face.client.list(face.key("a/"))).index
    await face.client.put(face.key("b"), b"1")
    assert (await face.client.list(face.key("a/"))).index == emptied
    assert (await face.client.keys(face.key("a/"))).index == emptied


async def test_a_prefix_that_never_was_answers_with_the_moving_index_of_the_table(face: Face) -> None:
    first = (await face.client.list(face.key("never/"))).index
    await face.client.put(face.key("b"), b"1")
    assert (await face.client.list(face.key("never/"))).index > first
    # The tombstone of a recursive delete stands at its prefix and is not seen from below it.
    await face.client.put(face.key("t/u/1"), b"1")
    await face.client.delete(face.key("t/"), recurse=True)
    above, below = (await face.client.list(face.key("t/"))).index, await face.client.list(face.key("t/u/"))
    await face.client.put(face.key("b"), b"2")
    assert (await face.client.list(face.key("t/"))).index == above
    assert (await face.client.list(face.key("t/u/"))).index > below.index


async def test_the_index_rises_after_a_recursive_delete(face: Face) -> None:
    await face.client.put(face.key("a/1"), b"1")
    await face.client.put(face.key("b/1"), b"1")
    before = (await face.client.list(face.prefix)).index
    await face.client.delete(face.key("a/"), recurse=True)
    after = await face.client.list(face.prefix)
    assert after.index > before
    assert [item.key for item in after.items] == [face.key("b/1")]


async def test_deleting_nothing_moves_no_index(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    before = (await face.client.list(face.prefix)).index
    await face.client.delete(face.key("none"))
    await face.client.delete(face.key("none/"), recurse=True)
    assert (await face.client.list(face.prefix)).index == before


async def test_index_1_answers_at_once_and_so_does_a_past_one(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    index, _ = await face.client.get(face.key("a"))
    assert (await face.client.get(face.key("a"), index=1, wait=LONG))[0] == index
    assert (await face.client.get(face.key("a"), index=index - 1, wait=LONG))[0] == index


async def test_an_index_of_the_future_waits_and_then_answers_the_lower_real_one(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    index, _ = await face.client.get(face.key("a"))
    watch = await parked(face, face.client.get(face.key("a"), index=index + 1_000_000, wait=0.2))
    await face.elapse(0.3)
    assert (await watch)[0] == index  # type: ignore[index]


Read = Callable[[ConsulClient, str, int], Awaitable[object]]
WATCHES: dict[str, Read] = {
    "key": lambda client, prefix, index: client.get(f"{prefix}a", index=index, wait=LONG),
    "list": lambda client, prefix, index: client.list(prefix, index=index, wait=LONG),
    "keys": lambda client, prefix, index: client.keys(prefix, index=index, wait=LONG),
}


async def index_of(face: Face, kind: str) -> int:
    if kind == "key":
        return (await face.client.get(face.key("a")))[0]
    return (await face.client.list(face.prefix)).index


@pytest.mark.parametrize("kind", WATCHES)
@pytest.mark.parametrize(
    "change", ["write", "flags", "lock", "transaction", "delete", "delete tree", "destroy"]
)
async def test_a_watch_wakes_for_every_kind_of_change(face: Face, kind: str, change: str) -> None:
    key = face.key("a")
    session = await face.session()
    await face.client.put(key, b"1", acquire=session if change == "destroy" else None)
    watch = await parked(face, WATCHES[kind](face.client, face.prefix, await index_of(face, kind)))
    assert not watch.done()
    match change:
        case "write":
            await face.client.put(key, b"2")
        case "flags":
            await face.client.put(key, b"1", flags=9)
        case "lock":
            await face.client.put(key, b"1", acquire=session)
        case "transaction":
            await face.txn({"Verb": "set", "Key": key, "Value": b"3"})
        case "delete":
            await face.client.delete(key)
        case "delete tree":
            await face.client.delete(face.prefix, recurse=True)
        case "destroy":
            await face.client.destroy_session(session)
    await in_time(watch)


async def test_a_watch_sleeps_through_what_changes_nothing_of_it(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    await face.client.put(face.key("b/1"), b"1")
    index, _ = await face.client.get(face.key("a"))
    tree = (await face.client.list(face.key("b/"))).index
    one = await parked(face, face.client.get(face.key("a"), index=index, wait=LONG))
    other = await parked(face, face.client.list(face.key("b/"), index=tree, wait=LONG))
    await face.client.put(face.key("a"), b"1")
    await face.client.put(face.key("c"), b"1")
    await face.txn(
        {"Verb": "set", "Key": face.key("a"), "Value": b"9"},
        {"Verb": "cas", "Key": face.key("b/1"), "Value": b"9", "Index": 1},
    )
    sibling = await parked(face, face.client.get(face.key("c"), index=1, wait=LONG))
    await in_time(sibling)
    assert not one.done()
    assert not other.done()
    await face.client.put(face.key("a"), b"2")
    await face.client.put(face.key("b/1"), b"2")
    assert (await in_time(one))[1].value == b"2"  # type: ignore[index]
    assert (await in_time(other)).items[0].decoded() == b"2"  # type: ignore[attr-defined]


async def test_a_watch_on_a_missing_key_wakes_for_its_neighbours(face: Face) -> None:
    await face.client.put(face.key("m/a"), b"1")
    await face.client.put(face.key("m/b"), b"1")
    index, entry = await face.client.get(face.key("m/z"))
    assert entry is None
    watch = await parked(face, face.client.get(face.key("m/z"), index=index, wait=LONG))
    await face.client.put(face.key("m/a"), b"2")
    woken, entry = await in_time(watch)  # type: ignore[misc]
    assert woken > index
    assert entry is None


async def test_a_watch_on_an_emptied_prefix_sleeps_until_something_is_there(face: Face) -> None:
    await face.client.put(face.key("e/1"), b"1")
    await face.client.delete(face.key("e/1"))
    index = (await face.client.list(face.key("e/"))).index
    watch = await parked(face, face.client.list(face.key("e/"), index=index, wait=LONG))
    for number in range(5):
        await face.client.put(face.key("other"), str(number).encode())
    assert not watch.done()
    await face.client.put(face.key("e/2"), b"1")
    assert [item.key for item in (await in_time(watch)).items] == [face.key("e/2")]  # type: ignore[attr-defined]


async def test_a_wait_ends_with_the_same_index_when_nothing_happens(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    index, _ = await face.client.get(face.key("a"))
    watch = await parked(face, face.client.get(face.key("a"), index=index, wait=0.3))
    if face.virtual is not None:
        await face.elapse(0.299)
        assert not watch.done()
    await face.elapse(0.3 + 0.3 / 16)
    assert (await in_time(watch))[0] == index  # type: ignore[index]


async def test_many_watches_of_one_prefix_all_wake(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    index = (await face.client.list(face.prefix)).index
    watches = [await parked(face, face.client.list(face.prefix, index=index, wait=LONG)) for _ in range(5)]
    await face.client.put(face.key("b"), b"1")
    pages = await in_time(asyncio.gather(*watches))
    assert all(len(page.items) == 2 for page in pages)  # type: ignore[attr-defined]


async def test_the_list_of_sessions_wakes_for_everybody_and_never_for_a_renewal(face: Face) -> None:
    mine = await face.session()
    answer = await face.raw("GET", f"/v1/session/info/{mine}")
    index = answer.headers["x-consul-index"]
    of_one = await parked(face, face.raw("GET", f"/v1/session/info/{mine}", {"index": index, "wait": "60s"}))
    of_all = await parked(face, face.raw("GET", "/v1/session/list", {"index": index, "wait": "60s"}))
    await face.client.renew_session(mine)
    another = await face.session()
    await in_time(of_all)
    assert not of_one.done()
    await face.client.destroy_session(mine)
    assert (await in_time(of_one)).body.strip() == b"[]"  # type: ignore[attr-defined]
    await face.client.destroy_session(another)
