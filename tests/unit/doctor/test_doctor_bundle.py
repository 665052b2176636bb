"""The archive for somebody who helps has no secrets, and is written also where much cannot be read."""

from __future__ import annotations

import json

import msgspec
import pytest

from farmd.commands.mutation import Call, commit
from farmd.doctor import bundle
from farmd.doctor.bundle import BundleParts, gathered
from farmd.replication.commands import RC
from store import codec
from store.errors import AccessDenied
from store.farms import Member
from tests.people import KEYS, created, person

SECRET = "hunter2-canary"


async def silent(url: str, most: int) -> bytes:
    raise OSError(f"{url}: nobody listens")


async def parts_of(call: Call, fetch: bundle.Fetch = silent) -> BundleParts:
    return await gathered(call, fetch, lambda: "[farm]\n")


async def farm(call: Call, name: str, address: str = "127.0.0.1:7520") -> None:
    await call.client.put(KEYS.farm(name), codec.encode(Member(id=name, version="1", address=address)))


async def test_no_environment_and_no_command_of_a_pod_is_in_any_part() -> None:
    async with person(reason="why") as call:
        await created(call, pod_env={"PASSWORD": SECRET})
        spec = RC.file.parse(
            {"name": "other", "replicas": 1, "pod": {"id": "o", "command": [SECRET]}}, "file"
        )
        await commit(call, await RC.create(call, spec))
        found = await parts_of(call)
        assert b"other" in found.files["audit.jsonl"]
        assert [name for name, content in found.files.items() if SECRET.encode() in content] == []


async def test_what_each_farm_answers_is_in_a_folder_of_its_own_and_silence_is_told() -> None:
    async def fetch(url: str, most: int) -> bytes:
        if ":1/" in url:
            return f"answer of {url}".encode()
        raise OSError("nobody listens")

    async with person() as call:
        await farm(call, "up", "127.0.0.1:1")
        await farm(call, "down", "127.0.0.1:2")
        found = await parts_of(call, fetch)
    assert found.files["farms/up/metrics"] == b"answer of http://127.0.0.1:1/metrics"
    assert {found.missing[f"farms/down/{route}"] for route in bundle.ROUTES} == {"nobody listens"}
    about = json.loads(found.files["about.json"])
    assert about["missing"] == found.missing
    assert about["by"] == "user/ada@desk"


async def test_an_answer_without_end_is_cut_and_said_to_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(url: str, most: int) -> bytes:
        return b"x" * (most + 1)

    monkeypatch.setattr(bundle, "MOST_BYTES", 10)
    async with person() as call:
        await farm(call, "up")
        found = await parts_of(call, endless)
    assert found.files["farms/up/metrics"] == b"x" * 10
    assert found.missing["farms/up/metrics"] == "only the first 10 of 11 bytes"


async def test_a_part_that_may_not_be_read_is_named_and_the_others_are_there() -> None:
    async def denied() -> object:
        raise AccessDenied("agent: denied")

    async with person() as call:
        call.client.agent = denied  # type: ignore[method-assign,assignment]
        found = await parts_of(call)
    assert "denied" in found.missing["consul.json"]
    assert {"farms.json", "status.json", "doctor.json", "farmd.toml"} <= found.files.keys()


async def test_a_record_that_does_not_decode_is_there_as_it_stands() -> None:
    async with person() as call:
        await call.client.put(KEYS.farm("odd"), b"{broken")
        found = await parts_of(call)
    farms = msgspec.json.decode(found.files["farms.json"])
    assert farms["farms/odd"]["value"] == "{broken"
