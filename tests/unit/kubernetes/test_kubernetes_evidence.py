"""What an informer cannot vouch for freezes removals (R18, R19); what it never knew does not."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.kubernetes.base import SHRANK_SECONDS, evidence
from tests.unit.kubernetes.test_informer import World


def found(world: World) -> str | None:
    checks = evidence("prod", [world.informer], world.clock)
    return next((text for check in checks if (text := check())), None)


async def filled(world: World, count: int) -> None:
    for number in range(count):
        world.server.write(f"s{number}")
    await world.clock.advance(1)
    assert len(world.store) == count


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ("forbidden", "kubernetes prod: services may not be read"),
        ("missing", "kubernetes prod: services are not served"),
    ],
)
async def test_a_resource_that_cannot_be_read_any_more_is_evidence_until_it_can(
    trouble: str, text: str
) -> None:
    async with World() as world:
        await filled(world, 3)
        assert found(world) is None
        world.server.trouble = trouble
        world.server.cut()
        await world.clock.advance(5)
        assert found(world) == text
        assert len(world.store) == 3
        world.server.trouble = ""
        await world.clock.advance(60)
        assert found(world) is None


async def test_a_resource_that_was_never_read_is_no_evidence() -> None:
    async with World() as world:
        world.server.trouble = "missing"
        await world.clock.advance(60)
        assert not world.informer.synced
        assert found(world) is None


async def test_a_server_that_is_away_is_no_evidence() -> None:
    async with World() as world:
        await filled(world, 3)
        world.server.trouble = "away"
        world.server.cut()
        await world.clock.advance(60)
        assert found(world) is None


@pytest.mark.parametrize(("left", "frozen"), [(10, True), (25, False)])
async def test_a_list_that_lacks_most_of_what_was_known_is_evidence_for_a_while(
    left: int, frozen: bool
) -> None:
    text = "kubernetes prod: more than 50% of the services vanished at once"
    async with World() as world:
        await filled(world, 40)
        world.server.silence()
        for number in range(left, 40):
            del world.server.state.objects[f"s{number}"]
        world.server.compact()
        await world.clock.advance(90)
        assert len(world.store) == left
        assert (found(world) == text) is frozen
        await world.clock.advance(SHRANK_SECONDS + 1)
        assert found(world) is None


async def test_deletions_that_the_server_tells_are_no_evidence() -> None:
    async with World() as world:
        await filled(world, 40)
        for number in range(40):
            world.server.delete(f"s{number}")
        await world.clock.advance(1)
        assert len(world.store) == 0
        assert found(world) is None


async def test_a_share_of_objects_that_do_not_decode_is_evidence() -> None:
    async with World() as world:
        for name in ("good", "better", "bad", "worse"):
            written: dict[str, Any] = world.server.write(name)
            if name in ("bad", "worse"):
                written["metadata"]["labels"] = 7
        await world.clock.advance(1)
        assert set(world.known()) == {"good", "better"}
        assert found(world) == "kubernetes prod: more than 20% of the services do not decode"


async def test_a_watch_is_as_old_as_its_last_answer_and_one_that_was_not_begun_is_not_old() -> None:
    world = World()
    await world.clock.advance(900)
    assert world.informer.staleness() == 0
    async with world:
        await world.clock.advance(10)
        assert world.informer.staleness() < 10
        world.server.trouble = "missing"
        world.server.cut()
        await world.clock.advance(200)
        assert 190 < world.informer.staleness() <= 210
