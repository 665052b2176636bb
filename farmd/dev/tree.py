"""A tree of processes that must not outlive its root process, even if a process in between is killed.

A workload becomes an orphan when its agent is killed. As a "subreaper" the root inherits all orphans
below it (prctl(2), Linux), so that it can find and end every process that it caused. Process ids are
read from the kernel's table at the moment of use; no process is ever ended by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

from store.ports import Clock

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_SECONDS = 0.05


def adopt_orphans() -> None:
    """Make this process the parent of all future orphans below it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Called in a child before its exec: have the kernel kill the child when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """All processes below a process, parents first, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = list[int](), [root]
    while queue:
        below = sorted(children.get(queue.pop(0), []))
        found += below
        queue += below
    return found


def end_all(clock: Clock, grace: float, spare: Iterable[int] = ()) -> list[int]:
    """End all processes below this one: with SIGTERM, after ``grace`` seconds with SIGKILL.

    Returns the processes that were killed. Processes that start meanwhile are ended, too.
    """
    kept, killed = set(spare), list[int]()
    deadline = clock.mono() + grace
    asked: set[int] = set()
    while left := [pid for pid in descendants(os.getpid()) if pid not in kept]:
        if clock.mono() >= deadline:
            killed += [pid for pid in left if pid not in killed]
            send(left, signal.SIGKILL)
        else:
            send((pid for pid in left if pid not in asked), signal.SIGTERM)
            asked.update(left)
        reap()
        pause()
    reap()
    return killed


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(spare: Iterable[int] = ()) -> None:
    """Reap all dead children except ``spare``, whose exit the caller reads itself."""
    kept = set(spare)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in kept and _parent(entry, dead=True) == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(entry.name), os.WNOHANG)


def pause(seconds: float = LOOK_SECONDS) -> None:
    """Sleep for a moment, without an event loop."""
    select.select([], [], [], seconds)


def _parent(entry: Path, dead: bool = False) -> int | None:
    """The parent of a process that is alive, or of one that is ``dead`` but not yet reaped."""
    try:
        text = (entry / "stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(parent) if (state in "ZX") == dead else None


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
