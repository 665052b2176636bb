"""Programs of ours as processes of their own, forked from one that has imported all of farmd.

To start Python and to import farmd takes half a second of the processor, which is more than most commands of
a test need. A forked program differs from a started one in nothing else: it has its own arguments,
environment, session, signals and streams. It dies with the test process, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
NOTHING = Path(os.devnull)
PR_SET_PDEATHSIG = 1
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "tests.preloaded"])
_lock = threading.Lock()  # multiprocessing looks after the children of all threads at once


@dataclass(frozen=True)
class Stream:
    """A file descriptor that a forked process gets a duplicate of."""

    number: int

    def __reduce__(self) -> tuple[Callable[[Any], Stream], tuple[Any]]:
        return _received, (reduction.DupFd(self.number),)


def _received(passed: Any) -> Stream:
    return Stream(passed.detach())


class Forked:
    """Calls a function of a module in a process of its own, which a test handles like a ``Popen``.

    Args:
        target: ends the process with the code of ``sys.exit``, 0 when it returns, 1 after an exception.
        streams: the file descriptors of its stdin, stdout and stderr, which the caller may then close.
        environ: all of its environment; None: that of the tests.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        streams: tuple[int, int, int],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        given = (dict(os.environ if environ is None else environ), tuple(map(Stream, streams)))
        self._process = _CONTEXT.Process(target=_child, args=(*given, target, arguments), daemon=True)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it ended."""
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def ready() -> None:
    """Return once processes can be forked without delay: the imports take a second or more."""
    with NOTHING.open("r+") as nothing:
        Forked(_nothing, streams=(nothing.fileno(),) * 3).wait()


def _nothing() -> None:
    pass


def forked_module(
    module: str, *arguments: str, streams: tuple[int, int, int], environ: Mapping[str, str]
) -> Forked:
    """Run ``python -m module arguments``; returns at once."""
    return Forked(_module, module, arguments, streams=streams, environ=environ)


def piped_module(module: str, *arguments: str, environ: Mapping[str, str]) -> tuple[Forked, TextIO]:
    """Run ``python -m module arguments`` without input; the process, and all that it says."""
    reading, writing = os.pipe()
    with NOTHING.open() as null, os.fdopen(writing, "w"):
        process = forked_module(
            module, *arguments, streams=(null.fileno(), writing, writing), environ=environ
        )
    return process, os.fdopen(reading)


def _module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _child(
    environ: Mapping[str, str],
    streams: tuple[Stream, Stream, Stream],
    target: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    for number, stream in enumerate(streams):
        os.dup2(stream.number, number)
        os.close(stream.number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the end
    sys.stdout, sys.stderr = _writer(1, "strict"), _writer(2, "backslashreplace")
    target(*arguments)


def _writer(number: int, errors: str) -> io.TextIOWrapper:
    """As the interpreter opens it."""
    at_once = number == 2 or bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(open(number, "wb", closefd=False), errors=errors, write_through=at_once)
