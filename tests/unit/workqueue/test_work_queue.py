"""The queue of client-go, by its rules: one worker a key, one rerun, the earlier of two times, waits that
grow.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.workqueue.queue import Bucket, Failures, WorkQueue
from tests.virtual import VirtualClock


def queue(clock: VirtualClock | None = None) -> WorkQueue[str]:
    return WorkQueue(clock or VirtualClock())


async def test_keys_come_out_once_and_in_the_order_of_their_addition() -> None:
    keys = queue()
    for key in ("ns/a", "ns/b", "ns/a"):
        keys.add(key)

    assert [await keys.get(), await keys.get()] == ["ns/a", "ns/b"]
    assert len(keys) == 0


async def test_any_number_of_additions_during_processing_leads_to_one_rerun() -> None:
    keys = queue()
    keys.add("ns/a")
    key = await keys.get()
    for _ in range(3):
        keys.add("ns/a")
    assert len(keys) == 0  # no second worker gets it

    assert key is not None
    keys.done(key)

    assert await keys.get() == "ns/a"
    keys.done(key)
    assert len(keys) == 0


async def test_a_worker_waits_for_a_key() -> None:
    clock = VirtualClock()
    keys = queue(clock)
    workers = [asyncio.create_task(keys.get()) for _ in range(3)]
    await clock.settle()

    keys.add("ns/a")
    keys.add("ns/b")
    await clock.settle()

    assert sorted(str(worker.result()) for worker in workers if worker.done()) == ["ns/a", "ns/b"]
    keys.shut_down()
    await clock.settle()
    assert [worker.result() for worker in workers].count(None) == 1


async def test_failures_wait_twice_as_long_each_time_until_the_key_is_forgotten() -> None:
    keys = Failures()

    assert [keys.wait("ns/a") for _ in range(5)] == [0.005, 0.01, 0.02, 0.04, 0.08]
    assert keys.wait("ns/b") == 0.005
    keys.forget("ns/a")
    assert keys.wait("ns/a") == 0.005


def test_a_wait_is_a_thousand_seconds_at_most() -> None:
    keys = Failures()
    waits = [keys.wait("ns/a") for _ in range(2000)]

    assert waits[17] == pytest.approx(655.36)
    assert set(waits[18:]) == {1000.0}


async def test_the_bucket_lets_a_burst_pass_and_then_ten_a_second() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)

    assert [bucket.wait() for _ in range(100)] == [0.0] * 100
    assert [bucket.wait() for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    await clock.advance(1.0)
    assert bucket.wait() == 0.0


async def test_of_two_times_of_one_key_the_earlier_counts() -> None:
    clock = VirtualClock()
    keys = queue(clock)
    keys.add_after("ns/a", 60.0)
    keys.add_after("ns/a", 5.0)
    keys.add_after("ns/a", 30.0)
    worker = asyncio.create_task(keys.get())

    await clock.advance(4.9)
    assert not worker.done()
    await clock.advance(0.2)

    assert worker.result() == "ns/a"
    keys.done("ns/a")
    await clock.advance(100)
    assert len(keys) == 0
    late = asyncio.create_task(keys.get())
    await clock.settle()
    assert not late.done()
    keys.shut_down()
    await late


async def test_a_time_that_is_over_adds_at_once() -> None:
    keys = queue()
    keys.add_after("ns/a", 0.0)

    assert await keys.get() == "ns/a"


async def test_retries_are_counted_until_the_key_is_forgotten_and_other_additions_are_not() -> None:
    keys = queue()
    keys.add_rate_limited("ns/a")
    keys.add_rate_limited("ns/a")
    keys.add("ns/a")
    keys.add_after("ns/a", 1.0)

    assert keys.num_requeues("ns/a") == 2
    keys.forget("ns/a")
    assert keys.num_requeues("ns/a") == 0


async def test_at_its_end_the_queue_gives_out_what_is_listed_and_drops_what_was_to_come() -> None:
    keys = queue()
    keys.add("ns/a")
    keys.add_after("ns/b", 5.0)
    keys.shut_down()
    keys.add("ns/c")

    assert [await keys.get(), await keys.get()] == ["ns/a", None]


async def test_a_turn_that_fails_comes_back_and_one_that_succeeds_is_forgotten() -> None:
    clock = VirtualClock()
    keys = queue(clock)
    keys.add("ns/a")

    with pytest.raises(RuntimeError):
        async with keys.turn():
            raise RuntimeError
    assert keys.num_requeues("ns/a") == 1
    await clock.advance(0.01)
    async with keys.turn() as key:
        assert key == "ns/a"

    assert keys.num_requeues("ns/a") == 0


@given(st.lists(st.tuples(st.sampled_from(("add", "get", "done")), st.integers(0, 3)), max_size=60))
def test_no_key_is_ever_with_two_workers_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        keys: WorkQueue[int] = WorkQueue(VirtualClock())
        processing: list[int] = []
        wanted: set[int] = set()
        for step, key in steps:
            if step == "add":
                keys.add(key)
                wanted.add(key)
            elif step == "get" and len(keys):
                found = await keys.get()
                assert found not in processing
                assert found in wanted
                assert found is not None
                processing.append(found)
                wanted.discard(found)
            elif step == "done" and key in processing:
                processing.remove(key)
                keys.done(key)
        for key in processing:
            keys.done(key)
        assert {await keys.get() for _ in range(len(keys))} == wanted

    asyncio.run(run())
