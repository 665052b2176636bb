"""The real clock, ids and randomness keep what the ports promise."""

from __future__ import annotations

import re

from farmd.runtime.clock import SystemClock, SystemIds, system_rng


async def test_mono_only_goes_forward_and_sleep_accepts_the_past():
    clock = SystemClock()
    before = clock.mono()
    await clock.sleep(-5)
    await clock.sleep(0.001)
    assert clock.mono() >= before + 0.001


def test_r23_ids_are_16_hex_digits_spread_over_all_shards():
    made = [SystemIds().new() for _ in range(1000)]
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in made)
    assert len(set(made)) == 1000
    assert {one[0] for one in made} == set("0123456789abcdef")


def test_two_generators_differ():
    assert system_rng().uniform(0, 1) != system_rng().uniform(0, 1)
