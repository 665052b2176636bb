"""The server that gates of rollouts ask during a soak: now and then it fails or hangs for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from aiohttp import web

from tests.web_servers import serving

Mood = Literal["passes", "fails", "hangs"]
MOODS: tuple[Mood, ...] = ("passes", "passes", "passes", "passes", "fails", "hangs")
MOOD_SECONDS = (0.5, 4.0)


class Smoke:
    """Answers for all gates alike; ``flapping`` only while a round lasts."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._mood: Mood = "passes"
        self._until = 0.0
        self.flapping = False
        self.address = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As its mood is, which changes every few seconds."""
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            self._mood = self._rng.choice(MOODS)
            self._until = now + self._rng.uniform(*MOOD_SECONDS)
        mood = self._mood if self.flapping else "passes"
        if mood == "hangs":
            await asyncio.sleep(60.0)
        return web.Response(status=503 if mood == "fails" else 200)


@asynccontextmanager
async def smoke(rng: random.Random) -> AsyncIterator[Smoke]:
    """The server, for the length of a ``with`` block."""
    made = Smoke(rng)
    async with serving(made.answer) as address:
        made.address = f"{address}/smoke"
        yield made
