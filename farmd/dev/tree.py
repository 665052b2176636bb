"""A tree of processes that one process answers for: none may outlive it, whoever dies in between.

A workload is nobody's child once its agent is killed. As "subreaper" a process inherits all orphans
below it (prctl(2), Linux), so that everything it ever caused can be found and ended. Process ids are
taken from the kernel's own table at the moment of use; nobody is ever ended by name.
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
    """From now on orphans below this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Called in a child before it execs: it is killed when its parent ends, however that ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Everything below a process, parents first, zombies left out."""
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
    """End everything below this process: first kindly, after ``grace`` seconds for good.

    Returns the processes that had to be killed. New ones that appear meanwhile are ended, too.
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
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(spare: Iterable[int] = ()) -> None:
    """Let go of all dead children but ``spare``, whose exit somebody else will ask for."""
    kept = set(spare)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in kept and _parent(entry, dead=True) == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(entry.name), os.WNOHANG)


def pause(seconds: float = LOOK_SECONDS) -> None:
    """Wait a moment without an event loop."""
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
