"""Reading and writing single keys and trees."""

from __future__ import annotations

import pytest

from store.entry import Entry
from tests.contract.faces import Face, json_of

ODD_KEYS = (
    "with space",
    "plus+plus",
    "é€",
    "a=b&c",
    "q?x#y",
    "per%20cent",
    "co:lon",
    "~tilde",
    "'quote\"",
    "<&>",
)


async def test_a_written_key_is_read_back_with_its_indexes(face: Face) -> None:
    key = face.key("a")
    assert await face.client.put(key, b"one", flags=7)
    index, entry = await face.client.get(key)
    assert entry == Entry(key, b"one", index, index, 0, 7, "")


async def test_a_missing_key_is_none_with_an_index_to_wait_on(face: Face) -> None:
    index, entry = await face.client.get(face.key("none"))
    assert entry is None
    assert index >= 1


async def test_an_equal_value_does_not_move_the_index_but_flags_do(face: Face) -> None:
    key = face.key("a")
    await face.client.put(key, b"same")
    first = (await face.client.get(key))[0]
    await face.client.put(key, b"same")
    assert (await face.client.get(key))[0] == first
    await face.client.put(key, b"same", flags=1)
    assert (await face.client.get(key))[0] > first
    # Flags are part of a write: leaving them out means 0.
    await face.client.put(key, b"same")
    assert (await face.client.read(key)).flags == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [b"", b"\x00\xff\r\n", b"x" * 524_288])
async def test_any_bytes_come_back_as_they_were(face: Face, value: bytes) -> None:
    key = face.key("bytes")
    await face.client.put(key, value)
    entry = await face.client.read(key)
    assert entry is not None
    assert entry.value == value


async def test_an_empty_value_is_null_on_the_wire(face: Face) -> None:
    await face.client.put(face.key("e"), b"")
    answer = await face.raw("GET", f"/v1/kv/{face.key('e')}")
    assert json_of(answer)[0]["Value"] is None
    assert "Session" not in json_of(answer)[0]


@pytest.mark.parametrize("name", ODD_KEYS)
async def test_keys_with_odd_characters(face: Face, name: str) -> None:
    key = face.key(name)
    assert await face.client.put(key, b"1")
    assert (await face.client.read(key)).key == key  # type: ignore[union-attr]
    assert (await face.client.keys(face.prefix)).items == [key]
    assert [item.key for item in (await face.client.list(key)).items] == [key]
    assert await face.client.delete(key)
    assert await face.client.read(key) is None


async def test_cas_0_creates_and_never_overwrites(face: Face) -> None:
    key = face.key("a")
    assert await face.client.put(key, b"1", cas=0)
    assert not await face.client.put(key, b"2", cas=0)
    assert (await face.client.read(key)).value == b"1"  # type: ignore[union-attr]


async def test_cas_needs_the_very_index(face: Face) -> None:
    key = face.key("a")
    await face.client.put(key, b"1")
    index = (await face.client.get(key))[0]
    assert not await face.client.put(key, b"2", cas=index + 1)
    assert not await face.client.put(key, b"2", cas=index - 1)
    assert await face.client.put(key, b"2", cas=index)
    assert not await face.client.put(face.key("none"), b"2", cas=index)


async def test_delete_cas_needs_the_index_unless_nothing_is_there(face: Face) -> None:
    key = face.key("a")
    await face.client.put(key, b"1")
    index = (await face.client.get(key))[0]
    assert not await face.client.delete(key, cas=index + 1)
    assert not await face.client.delete(key, cas=0)
    assert await face.client.delete(key, cas=index)
    assert await face.client.delete(key, cas=index)
    assert await face.client.delete(face.key("never"), cas=5)


async def test_deleting_what_is_not_there_is_no_failure(face: Face) -> None:
    assert await face.client.delete(face.key("none"))
    assert await face.client.delete(face.key("none/"), recurse=True)


async def test_a_tree_is_listed_in_the_order_of_its_bytes(face: Face) -> None:
    for name in ("b/1", "a", "a/2", "a/10", "a-1", "b/é", "b/z", "B"):
        await face.client.put(face.key(name), b"1")
    listed = [item.key.removeprefix(face.prefix) for item in (await face.client.list(face.prefix)).items]
    assert listed == ["B", "a", "a-1", "a/10", "a/2", "b/1", "b/z", "b/é"]


async def test_a_prefix_need_not_end_at_a_slash(face: Face) -> None:
    for name in ("ab", "abc", "ac", "a"):
        await face.client.put(face.key(name), b"1")
    assert (await face.client.keys(face.key("ab"))).items == [face.key("ab"), face.key("abc")]


async def test_a_recursive_delete_takes_the_prefix_and_nothing_else(face: Face) -> None:
    for name in ("ab", "ab/1", "abc", "b"):
        await face.client.put(face.key(name), b"1")
    assert await face.client.delete(face.key("ab"), recurse=True)
    assert (await face.client.keys(face.prefix)).items == [face.key("b")]


@pytest.mark.parametrize(
    ("prefix", "separator", "expected"),
    [
        ("a/", "/", ["a/", "a/b/", "a/bb", "a/c/"]),
        ("a/", "", ["a/", "a/b/c", "a/b/d", "a/bb", "a/c/", "a/c/x/y"]),
        ("a/b", "/", ["a/b/", "a/bb"]),
        ("a", "/", ["a", "a/"]),
        ("a/", "b", ["a/", "a/b", "a/c/", "a/c/x/y"]),
        ("a/c/", "c/", ["a/c/", "a/c/x/y"]),
        ("none", "/", []),
    ],
)
async def test_keys_up_to_a_separator(face: Face, prefix: str, separator: str, expected: list[str]) -> None:
    for name in ("a", "a/", "a/b/c", "a/b/d", "a/bb", "a/c/", "a/c/x/y"):
        await face.client.put(face.key(name), b"1")
    page = await face.client.keys(face.key(prefix), separator=separator)
    assert [key.removeprefix(face.prefix) for key in page.items] == expected


async def test_keys_alone_tell_the_index_of_the_answer_with_values(face: Face) -> None:
    async def indexes() -> tuple[int, int]:
        keys = await face.client.keys(face.key("a"), separator="/", mode="consistent")
        return keys.index, (await face.client.list(face.key("a"), mode="consistent")).index

    seen = []
    for number, name in enumerate(("a0/x", "a0/y", "a1", "a0/x")):
        await face.client.put(face.key(name), b"%d" % number)
        seen.append(await indexes())
    await face.client.put(face.key("b"), b"1")
    assert await indexes() == seen[-1]
    await face.client.delete(face.key("a0/x"))
    seen.append(await indexes())
    assert all(of_keys == of_values for of_keys, of_values in seen)
    assert len(set(seen)) == len(seen), "each change has an index of its own"


async def test_raw_gives_the_value_alone(face: Face) -> None:
    await face.client.put(face.key("a"), b"\x00value")
    answer = await face.raw("GET", f"/v1/kv/{face.key('a')}", {"raw": ""})
    assert (answer.status, answer.body) == (200, b"\x00value")
    assert answer.headers["content-type"] == "text/plain"
    tree = await face.raw("GET", f"/v1/kv/{face.prefix}", {"raw": "", "recurse": ""})
    assert [each["Key"] for each in json_of(tree)] == [face.key("a")]
    assert (await face.raw("GET", f"/v1/kv/{face.key('none')}", {"raw": ""})).status == 404


async def test_pretty_is_indented(face: Face) -> None:
    await face.client.put(face.key("a"), b"1")
    answer = await face.raw("GET", f"/v1/kv/{face.key('a')}", {"pretty": ""})
    assert answer.body.startswith(b'[\n    {\n        "LockIndex": 0,')


@pytest.mark.parametrize("mode", ["default", "consistent", "stale"])
async def test_every_consistency_reads_what_was_acknowledged(face: Face, mode: str) -> None:
    for number in range(5):
        await face.client.put(face.key("a"), str(number).encode())
        entry = await face.client.read(face.key("a"), mode=mode)  # type: ignore[arg-type]
        assert entry is not None
        assert entry.value == str(number).encode()
    answer = await face.raw("GET", f"/v1/kv/{face.key('a')}", {mode: ""})
    assert answer.headers["x-consul-knownleader"] == "true"
    assert answer.headers["x-consul-lastcontact"] == "0"


async def test_a_key_and_a_tree_of_one_name_are_two_things(face: Face) -> None:
    await face.client.put(face.key("a/"), b"1")
    assert await face.client.read(face.key("a")) is None
    assert await face.client.read(face.key("a/")) is not None


async def test_a_big_tree_is_whole(face: Face) -> None:
    operations = [{"Verb": "set", "Key": face.key(f"{n:05}"), "Value": b"v"} for n in range(1000)]
    for start in range(0, 1000, 64):
        assert (await face.txn(*operations[start : start + 64])).status == 200
    assert len((await face.client.list(face.prefix)).items) == 1000
    assert (await face.client.keys(face.key("009"))).items[0] == face.key("00900")
