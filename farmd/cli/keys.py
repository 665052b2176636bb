"""Keys that a person presses while something is drawn on a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"k": "up",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"g": "home",
    b"G": "end",
    b"q": "q",
    b"s": "s",
}


@contextmanager
def pressed() -> Iterator[asyncio.Queue[str]]:
    """The keys as they are pressed, by name; none where stdin is no terminal. ^C stays what it is."""
    queue = asyncio.Queue[str]()
    if not sys.stdin.isatty():
        yield queue
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data:  # the terminal is gone
            loop.remove_reader(descriptor)
        elif name := _NAMES.get(data):
            queue.put_nowait(name)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield queue
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
