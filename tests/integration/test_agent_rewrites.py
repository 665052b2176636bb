"""An agent finds that what stands under its realities is not what it wrote, and writes it again (R22)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farmd.agent import reality
from store import codec
from tests.agents import Agents, agents_on, web
from tests.fleet import eventually


@pytest.fixture
async def rig(consul_dev: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agents]:
    monkeypatch.setattr(reality, "LOOK_AGAIN", 0.3)
    async with agents_on(consul_dev, tmp_path) as made:
        yield made


@pytest.mark.parametrize("value", [None, b"\xffgarbage", b'{"manifest":"other"}'])
async def test_r22_what_another_hand_did_to_a_reality_is_undone(rig: Agents, value: bytes | None) -> None:
    await rig.agent()
    await rig.want(web())
    said = await rig.until(lambda r: r.health.state == "passing")
    key = rig.keys.reality("n1", "web")
    if value is None:
        await rig.client.delete(key)
    else:
        await rig.client.put(key, value)

    async def restored() -> bool:
        entry = await rig.client.read(key, mode="consistent")
        return entry is not None and entry.value == codec.encode(said)

    await eventually(restored, what="the record")


async def test_a_reality_of_what_the_node_does_not_run_is_removed(rig: Agents) -> None:
    await rig.agent()
    await rig.want(web())
    await rig.until(lambda r: r.health.state == "passing")
    await rig.client.put(rig.keys.reality("n1", "no") + "/record", b"such a key is no record's")
    await rig.client.put(rig.keys.reality("n1", "stray"), b"garbage")

    async def gone() -> bool:
        return await rig.client.read(rig.keys.reality("n1", "stray"), mode="consistent") is None

    await eventually(gone, what="the removal of a stray record")


async def test_what_stands_as_it_was_written_is_not_written_again(rig: Agents) -> None:
    """A stray record goes by the same look that leaves the others alone."""
    await rig.agent()
    await rig.want(web())
    await rig.until(lambda r: r.health.state == "passing")
    key, stray = rig.keys.reality("n1", "web"), rig.keys.reality("n1", "stray")
    before = await rig.client.read(key, mode="consistent")
    for _ in range(3):
        await rig.client.put(stray, b"garbage")

        async def gone() -> bool:
            return await rig.client.read(stray, mode="consistent") is None

        await eventually(gone, what="a look")
    assert await rig.client.read(key, mode="consistent") == before
