"""Logs errors that asyncio has no task to raise in.

At the limit of open files asyncio reports each connection that it cannot accept, hundreds of times a second:
the log says it once a minute, because a full disk would be the next fault.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import structlog

from store.ports import Clock

log = structlog.get_logger()

_REFUSED = "socket.accept() out of system resource"
PAUSE_SECONDS = 60.0


def log_unhandled(loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
    """Log what the loop reports; of connections that wait for a free file one line a minute."""
    quiet_until = float("-inf")

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal quiet_until
        if context.get("message") != _REFUSED:
            loop.default_exception_handler(context)
        elif clock.mono() >= quiet_until:
            quiet_until = clock.mono() + PAUSE_SECONDS
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            log.error("web.cannot_accept", error=str(context.get("exception")), files_limit=limit)

    loop.set_exception_handler(report)
