"""How long the pods with ``stop_after`` may run, whatever became of their agent (R27).

The agent keeps in a few bytes of memory the time at which the renewal of its session is overdue. The process
that ends a pod has the same memory: its shim, or the guard of its container. When the agent is dead,
stopped or hangs on a disk, that time passes, and the pod is ended without the agent. The agent that follows
finds the memory through the processes that have it.

Times are seconds of CLOCK_BOOTTIME, which counts a suspend and which nobody sets. This module also runs
in shims: it imports nothing of the project, and holding a lease uses no disk.
"""

# pathlib would cost shims more memory than the rest of this file:
# ruff: noqa: PTH115

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FD = 90
"""Where a shim or a guard has the memory. It is started with the memory as its stderr."""
NAME = "farmd-lease"
AGAIN_SECONDS = 1.0
"""What the kernel holds outlives a SIGKILL for a while, so another one follows."""
_BYTES = 8
_TIMER_ABSTIME = 1
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # as ``SystemClock``, where that is missing


def stops_at(stop_after: float, grace: float) -> float:
    """After how many seconds without contact the pod gets its stop signal, so that it has ended by
    ``stop_after``: its grace, at most half of that time, lies before the end of the lease."""
    return stop_after - min(grace, stop_after / 2)


def step(isolated: float, stop_after: float, grace: float) -> tuple[str, float]:
    """What is due ("", "stop" or "kill") after so many seconds without contact, and when to look again."""
    stop = stops_at(stop_after, grace)
    if isolated < stop:
        return "", stop - isolated
    if isolated < stop_after:
        return "stop", stop_after - isolated
    return "kill", AGAIN_SECONDS


def hold(stop_after: float, grace: float, stop: Callable[[], None], kill: Callable[[], None]) -> None:
    """Wait until the lease is over, then end the pod; never returns.

    A pod that got its stop signal is killed in time, even where contact is back meanwhile.
    """
    due, pause = "", 0.0
    while due == "":
        _sleep(pause)
        due, pause = step(now() - _read(FD), stop_after, grace)
    if due == "stop":
        stop()
        _sleep(pause)
    while True:
        kill()
        _sleep(AGAIN_SECONDS)


def keep_memory() -> None:
    """In a shim or guard that begins: move the memory from stderr to its place."""
    os.dup2(2, FD, inheritable=False)
    os.dup2(1, 2)


def now() -> float:
    """Seconds since boot, those of suspends included."""
    return time.clock_gettime(_CLOCK)


def _sleep(seconds: float) -> None:
    """Sleep by the clock of ``now``: what falls due during a suspend is done at its end."""
    until = now() + seconds
    while (left := until - now()) > 0:
        try:
            import ctypes

            when = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
            if ctypes.CDLL(None).clock_nanosleep(_CLOCK, _TIMER_ABSTIME, when, None) in (0, errno.EINTR):
                continue
        except (ImportError, OSError, AttributeError):
            pass
        time.sleep(min(left, AGAIN_SECONDS))


def _read(fd: int) -> float:
    return int.from_bytes(os.pread(fd, _BYTES, 0), "little") / 1e6


def _write(fd: int, overdue: float) -> None:
    os.pwrite(fd, max(0, int(overdue * 1e6)).to_bytes(_BYTES, "little"), 0)


def overdue_of(pid: int) -> float | None:
    """The time that the memory of a shim or a guard holds; None: it has none."""
    try:
        fd = _open(pid, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _open(pid: int, mode: int) -> int:
    """Open the memory that a process has; descriptor 90 of another process may be anything.

    Raises:
        OSError: it has none, or this process may not.
    """
    path = f"/proc/{pid}/fd/{FD}"
    if not os.readlink(path).startswith(f"/memfd:{NAME}"):
        raise FileNotFoundError(path)
    return os.open(path, mode | os.O_CLOEXEC)


class Leases:
    """The memory of this agent, and that which running shims and guards have of earlier ones."""

    def __init__(self) -> None:
        self._own = os.memfd_create(NAME, os.MFD_CLOEXEC)
        self._all = {_inode(self._own): self._own}
        self._overdue = 0.0
        _write(self._own, 0.0)

    def renewed(self, seconds: float) -> None:
        """Contact was made, and will be overdue in so many seconds. No lease gets shorter by that."""
        overdue = now() + seconds
        if overdue > self._overdue:
            self._overdue = overdue
            for fd in self._all.values():
                _write(fd, overdue)

    def reader(self) -> int:
        """A descriptor by which a new shim or guard can only read; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._own}", os.O_RDONLY | os.O_CLOEXEC)

    def join(self, pid: int) -> bool:
        """Renew from now on what a running shim or guard has; False: it has no lease.

        Raises:
            OSError: this agent may not, so its pod will be ended.
        """
        try:
            fd = _open(pid, os.O_RDWR)
        except FileNotFoundError:
            return False
        if _inode(fd) in self._all:
            os.close(fd)
            return True
        self._all[_inode(fd)] = fd
        self._overdue = max(self._overdue, _read(fd))
        for each in self._all.values():
            _write(each, self._overdue)
        return True

    def close(self) -> None:
        """Let go of all memory; the processes keep theirs."""
        for fd in self._all.values():
            os.close(fd)
        self._all.clear()


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
