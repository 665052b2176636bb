"""What ^C does while farmctl's loop waits for a person, and asyncio's own handler with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any


def interruptible() -> AbstractContextManager[None]:
    """Let ^C end what waits for a person: by asyncio's handler it would end once the loop runs on."""
    return _at_interrupt(signal.default_int_handler)


def left_to_the_editor() -> AbstractContextManager[None]:
    """Leave ^C to an editor while it runs. By asyncio's handler the first one would end farmctl afterwards,
    and the second one would kill the editor with what a person wrote.
    """
    # The editor does not inherit a handler, as it would SIG_IGN.
    return _at_interrupt(lambda *_: None)


@contextmanager
def _at_interrupt(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Call ``handler`` at ^C meanwhile; signals reach the main thread alone, so no other has a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
