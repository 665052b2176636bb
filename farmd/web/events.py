"""``/events?of=PATH``: server-sent events that tell a page when what it shows has changed.

An event only says that there is something new, with its version as id; the page then asks for itself again.
So a slow reader misses nothing and nothing piles up for it, and after a reconnect one id says whether it is
behind. While Consul is silent, an event says since when what the page shows stands still.
What must never break: a stream costs nothing while nothing changes, there are never more than
``MOST_STREAMS``, and none outlives its token or session by more than a heartbeat.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from farmd.runtime.wake import Wake, wait
from farmd.web.access import SignInNeeded
from farmd.web.connections import parked
from farmd.web.html import HEADERS
from farmd.web.site import MOST_STREAMS, Topic
from farmd.web.visit import Visit, reader
from store.times import rfc3339

HEARTBEAT_SECONDS = 5.0
APART_SECONDS = 0.5
WRITE_SECONDS = 20.0


async def stream(visit: Visit) -> web.StreamResponse:
    """Tell of changes until the browser leaves, reads nothing, or the farm stops."""
    site, request = visit.site, visit.request
    topic = site.topic(request.query.get("of", ""))
    if topic is None:
        raise web.HTTPNotFound(text="of: expected the path of a page that changes")
    if len(site.streams) >= MOST_STREAMS:
        raise web.HTTPServiceUnavailable(text=f"{MOST_STREAMS} streams are already open here")
    seen = request.headers.get("Last-Event-ID") or request.query.get("since", "")
    headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
    answer, wake = web.StreamResponse(headers=headers), Wake()
    site.streams.add(wake)
    try:
        with parked(request), topic.listening(wake):
            await answer.prepare(request)
            await _tell(visit, answer, topic, wake, seen)
    except (TimeoutError, ConnectionError):
        pass  # nobody reads any more; a browser that comes back says what it has seen
    finally:
        site.streams.discard(wake)
    return answer


async def _tell(visit: Visit, answer: web.StreamResponse, topic: Topic, wake: Wake, seen: str) -> None:
    clock, silent = visit.site.farm.clock, False
    await _write(answer, "retry: 2000\n\n")
    while _goes_on(visit):
        if bool(since := visit.site.farm.silent_since()) != silent:
            silent = not silent
            await _write(answer, f"event: silent\ndata: {rfc3339(since) if since else ''}\n\n")
        if (now := topic.version) != seen:
            seen = now
            await _write(answer, f"id: {seen}\nevent: change\ndata: {seen}\n\n")
            await clock.sleep(APART_SECONDS)
            continue
        wake.clear()
        if not await wait(wake, clock, HEARTBEAT_SECONDS):
            await _write(answer, ": nothing new\n\n")


def _goes_on(visit: Visit) -> bool:
    """Whether the farm serves on, and the token or session of the stream still stands."""
    try:
        reader(visit.site, visit.request)
    except (SignInNeeded, web.HTTPException):
        return False
    return not visit.site.closed


async def _write(answer: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await answer.write(text.encode())
