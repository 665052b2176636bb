"""farmctl of an earlier version, forked from one process that has imported it: for tests of upgrades.

A start of Python with these imports costs most of a second of the processor, and such tests ask dozens of
times. This file is also the program of that process, which imports nothing of today's code.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = "farmd.cli"
MOST_BYTES = 1 << 20
_lock = threading.Lock()
_servers: dict[Path, socket.socket] = {}


class Call:
    """One run, which a test handles like a ``Popen``."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def wait(self, timeout: float) -> int:
        """The exit code, once it ended."""
        self._line.settimeout(timeout)
        return int(self._line.recv(16))

    def kill(self) -> None:
        """SIGKILL, unless it ended."""
        self._line.close()


def call(
    tree: Path, arguments: Sequence[str], *, streams: tuple[int, int, int], environ: Mapping[str, str]
) -> Call:
    """Run ``farmctl arguments`` of the code in a folder; returns at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said = json.dumps([list(arguments), dict(environ)]).encode()
    with theirs, _lock:
        if tree not in _servers:
            _servers[tree] = _started(tree)
        socket.send_fds(_servers[tree], [said], [theirs.fileno(), *streams])
    return Call(ours)


def _started(tree: Path) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# -- the process of the earlier version ------------------------------------------------------------
def _serve(line: socket.socket) -> None:
    """Fork a process for each call until the tests' end."""
    package = importlib.import_module(MODULE)
    for module in pkgutil.walk_packages(package.__path__, f"{MODULE}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that look after calls
    while True:
        said, numbers, *_ = socket.recv_fds(line, MOST_BYTES, 4)
        if not said:
            return
        if os.fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_look_after(said, socket.socket(fileno=numbers[0]), numbers[1:]))
        for number in numbers:
            os.close(number)


def _look_after(said: bytes, caller: socket.socket, streams: Sequence[int]) -> int:
    """Run the command line in a process, and tell its code; end it if nobody waits for it any more."""
    if (pid := os.fork()) == 0:
        caller.close()
        _run(said, streams)
    if caller in select.select([os.pidfd_open(pid), caller], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        caller.send(str(os.waitstatus_to_exitcode(status)).encode())
    except OSError:
        return 1  # nobody waits
    return 0


def _run(said: bytes, streams: Sequence[int]) -> None:
    arguments, environ = json.loads(said)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - until the end
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.argv = [MODULE, *arguments]
    code: object = 0
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
