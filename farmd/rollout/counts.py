"""p2's arithmetic of one step: how many pods leave the old side, how many come to the new one (spec of
``pkg/roll.rollAlgorithm``): pure."""

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
