"""Logs where a process hangs whose event loop is blocked, for example by a disk that does not answer.

Such a process renews no session, answers no HTTP and feeds no watchdog, so systemd ends it; by itself it
could not say why. A thread looks at the loop from outside, and changes nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import structlog

log = structlog.get_logger()

LOOK_SECONDS = 5.0
BLOCKED_SECONDS = 10.0
_FRAMES = 4


@contextlib.contextmanager
def logged(
    age: Callable[[], float], look: float = LOOK_SECONDS, limit: float = BLOCKED_SECONDS
) -> Iterator[None]:
    """Log ``loop.blocked`` when two looks in a row find no progress of this thread for ``limit`` seconds.

    ``age`` gives the seconds since its last progress. One look is not enough: the whole process may have
    been stopped. A line is logged once until there is progress again.
    """
    over, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        found = 0
        while not over.wait(look):
            seconds = age()
            found = found + 1 if seconds > limit else 0
            if found == 2:
                log.error("loop.blocked", seconds=round(seconds, 1), where=_where(thread))

    context = contextvars.copy_context()
    watching = threading.Thread(target=context.run, args=(watch,), name="blocked", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _where(thread: int) -> str:
    """The innermost calls of a thread, the last one first; files without their folders."""
    frames = traceback.extract_stack(sys._current_frames()[thread])[-_FRAMES:]
    return " < ".join(
        f"{each.name} ({each.filename.rpartition('/')[2]}:{each.lineno})" for each in reversed(frames)
    )
