"""The arithmetic of the floor, in numbers and in words: pure.

The numbers of pods that leave and come in one step are p2's (spec of ``pkg/roll.rollAlgorithm``).
"""

from __future__ import annotations


def counts(
    old: int, new: int, old_desired: int, new_desired: int, total: int, minimum: int, limit: int
) -> tuple[int, int]:
    """(pods that leave the old side, pods that come to the new side) at most now.

    ``old`` and ``new`` are the sides' available pods, ``total`` how many there shall be in the end,
    ``minimum`` the floor, ``limit`` the new side's goal. What comes beyond what leaves needs fresh places.
    """
    old = min(old, old_desired)
    grow = max(0, total - (old_desired + new_desired))
    headroom = old + new - minimum + grow
    remaining = limit - new_desired
    if remaining <= 0:
        return 0, 0
    if new >= minimum:
        return max(0, remaining - grow), remaining
    if headroom <= 0:
        return 0, 0
    add = min(remaining, headroom)
    return max(0, add - grow), add


def floored(floor: int, old: int, new: int, ailing: str = "") -> str:
    """``floor 9 = 7 old + 2 new: nothing may leave until n7/web is available``.

    ``old`` and ``new`` are available pods, ``ailing`` the first pod that came and is not available yet.
    """
    sign = "=" if old + new == floor else ">" if old + new < floor else "<"
    told = f"floor {floor} {sign} {old} old + {new} new"
    if old + new > floor:
        return f"{told}: {old + new - floor} may leave"
    until = f" until {ailing} is available" if ailing else ""
    return f"{told}: nothing may leave{until}"
