"""The floor's arithmetic in words, as the status, ``--wait`` and the reasons of a rollout tell it: pure."""

from __future__ import annotations


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
