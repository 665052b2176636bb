"""A clock that stands still unless the test moves it."""

from __future__ import annotations

import asyncio


class StillClock:
    """A ``store.ports.Clock``; ``sleep`` moves it and yields once."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.seconds = start

    def now(self) -> float:
        return self.seconds

    def mono(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)
