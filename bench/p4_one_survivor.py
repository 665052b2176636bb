"""P4 with one survivor: see ``takeover.py``."""

from __future__ import annotations

from bench.takeover import takeover


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    return await takeover(survivors=1)
