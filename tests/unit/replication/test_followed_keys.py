"""What looking at followed config keys costs, and when a worker hears of it (R41, R23)."""

from __future__ import annotations

import random

from farmd.runtime.wake import Wake
from farmd.work.following import LONGEST_SECONDS, QUIET_SECONDS, Followers, expected
from store.consul.client import ConsulClient
from store.containers import File
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.manifests import Manifest, Reference
from tests.people import KEYS, CountedIds
from tests.still_clock import StillClock
from tests.toys import Faulty


def manifest(key: str) -> Manifest:
    source = Reference(field="env.LEVEL", kv=key, version=1)
    return Manifest(id="web", command=["serve"], env={"LEVEL": "info"}, sources=[source])


async def test_r41_any_number_of_followers_costs_one_request_a_look_and_none_costs_nothing() -> None:
    clock = StillClock(1_800_000_000.0)
    transport = Faulty(InProcessTransport(EmbeddedServer(clock, rng=random.Random(7), ids=CountedIds())))
    client = ConsulClient(transport, clock=clock)
    followers = Followers(client, KEYS, clock, "f1")
    await followers.look()
    assert transport.sent == []
    for key in ("shop/a", "shop/b"):
        await client.put(f"{KEYS.prefix}config/{key}", b"info")
    wakes = [Wake() for _ in range(500)]
    for number, wake in enumerate(wakes):
        key = "shop/a" if number % 2 else "shop/b"
        followers.follow(f"rc{number}", "sha", manifest(key), wake)
    before = len(transport.sent)
    await followers.look()
    assert len(transport.sent) == before + 1
    assert not any(wake.is_set() for wake in wakes)
    await client.put(f"{KEYS.prefix}config/shop/a", b"debug")
    await followers.look()
    assert [wake.is_set() for wake in wakes] == [bool(number % 2) for number in range(500)]
    await client.close()


async def test_r41_a_value_that_always_changes_is_due_after_five_minutes_and_others_once_they_rest() -> None:
    clock = StillClock(1_800_000_000.0)
    client = ConsulClient(
        InProcessTransport(EmbeddedServer(clock, rng=random.Random(7), ids=CountedIds())), clock=clock
    )
    followers, wake, pod = Followers(client, KEYS, clock, "f1"), Wake(), manifest("shop/a")
    followers.follow("rc1", "sha", pod, wake)
    due = []
    for number in range(int(LONGEST_SECONDS // QUIET_SECONDS) + 1):
        await client.put(f"{KEYS.prefix}config/shop/a", str(number).encode())
        await followers.look()
        due.append(followers.follow("rc1", "sha", pod, wake).due)
        clock.seconds += QUIET_SECONDS
    assert due == [False] * (len(due) - 1) + [True]
    other = Followers(client, KEYS, clock, "f1")
    other.follow("rc1", "sha", pod, wake)
    await other.look()
    assert not other.follow("rc1", "sha", pod, wake).due
    clock.seconds += QUIET_SECONDS
    await other.look()
    assert other.follow("rc1", "sha", pod, wake).due
    await client.close()


async def test_r41_a_source_that_names_another_folder_opens_no_key_that_the_farm_does_not_list() -> None:
    source = Reference(field="files[0]", kv="/vault/root", version=1, below="shop/")
    pod = Manifest(id="web", command=["x"], files=[File(path="x", content="")], sources=[source])
    assert list(expected(pod)) == ["/vault/root"]
    clock = StillClock(1_800_000_000.0)
    client = ConsulClient(
        InProcessTransport(EmbeddedServer(clock, rng=random.Random(7), ids=CountedIds())), clock=clock
    )
    followers, wake = Followers(client, KEYS, clock, "f1", ["shared/"]), Wake()
    followers.follow("rc1", "sha", pod, wake)
    await followers.look()
    found = followers.follow("rc1", "sha", pod, wake)
    assert (found.due, found.stuck) == (False, True)
    assert "expected farm.follow of all farms to list it" in found.text
    await client.close()
