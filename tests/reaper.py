"""Ends a test run's servers however the run itself ends, SIGKILL included.

One small child process reads lines from a pipe: ``+pid folder`` when a server starts, ``-pid`` when
it was reaped. The pipe closes when the test process is gone; whatever is still listed is then
killed and its folder removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

_lock = threading.Lock()
_pipe = -1
_owner = 0


def started(pid: int, folder: Path | str = "") -> None:
    """Kill ``pid`` and remove ``folder`` when this process ends without having said ``reaped``."""
    _tell(f"+{pid} {folder}\n")


def reaped(pid: int) -> None:
    """That process is gone and waited for; its id may be somebody else's now."""
    _tell(f"-{pid}\n")


def _tell(line: str) -> None:
    global _pipe, _owner
    with _lock:
        if _owner != os.getpid():
            _pipe, _owner = _spawn(), os.getpid()
        os.write(_pipe, line.encode())


def _spawn() -> int:
    """The write end of the pipe; posix_spawn, because the child outlives this process by design."""
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", __file__]
    os.posix_spawn(
        sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)], setpgroup=0
    )
    os.close(reading)
    return writing


def _main() -> None:
    alive: dict[int, str] = {}
    for line in sys.stdin:
        pid, _, folder = line[1:].strip().partition(" ")
        if line[0] == "+":
            alive[int(pid)] = folder
        else:
            alive.pop(int(pid), None)
    for number, folder in alive.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _main()
