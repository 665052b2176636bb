"""Rings when an agent says something else of a pod, for pages that show the health of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from farmd.farm.farm import Farm
from farmd.web.lists import Source


class PodBell(Source):
    """All pods; what it follows are the farm's own copies."""

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        farm.caches.reality.subscribe(lambda _: self.bell.ring())

    def _run(self) -> Iterator[asyncio.Task[None]]:
        yield from ()
