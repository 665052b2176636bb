"""What asyncio reports outside of tasks: a process at the limit of its files must not fill its log."""

from __future__ import annotations

import asyncio
import errno
import logging

from structlog.testing import capture_logs

from farmd.process.unhandled import PAUSE_SECONDS, log_unhandled
from tests.virtual import VirtualClock


async def test_connections_that_find_no_free_file_are_logged_once_a_minute():
    loop, clock = asyncio.get_running_loop(), VirtualClock()
    log_unhandled(loop, clock)
    full = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "Too many open files"),
    }
    with capture_logs() as lines:
        for _ in range(300):
            loop.call_exception_handler(full)
        await clock.advance(PAUSE_SECONDS)
        loop.call_exception_handler(full)
    assert [line["event"] for line in lines] == ["web.cannot_accept"] * 2
    assert "Too many open files" in lines[0]["error"]


async def test_every_other_error_of_the_loop_is_logged(caplog):
    loop = asyncio.get_running_loop()
    log_unhandled(loop, VirtualClock())
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        for _ in range(2):
            loop.call_exception_handler({"message": "a task died"})
    assert [record.message for record in caplog.records] == ["a task died"] * 2
