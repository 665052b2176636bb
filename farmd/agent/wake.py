"""Wait for an event or for a time, on the injected clock: the one way the agent's loops pause."""

from __future__ import annotations

import asyncio
import math

from store.ports import Clock


async def wait(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Return when the event is set (True) or after so many seconds (False); infinity is allowed."""
    if event.is_set():
        return True
    if math.isinf(seconds):
        await event.wait()
        return True
    waiters = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return event.is_set()
