"""The control group (version 2) of one process of a pod: made, entered, ended and removed; and the children
of the process that runs this.

Shims run this file, too: it imports nothing of the project, and as little of the standard library as
possible.
"""

# pathlib would cost shims more memory than the rest of this file:
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH120, PTH123, PTH208, TID251

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any
else:
    try:
        import _signal as signal  # as the shim does
    except ImportError:
        import signal

PROCESSES = "/cgroup.procs"
SWAP = "memory.swap.max"
"""Kernels without accounting of swap do not have it."""
END_SECONDS = 5.0
_PAUSE = 0.01


def create(path: str, values: list[tuple[str, str, str]]) -> str:
    """Make a group with these (field, file, value), in place of one that a former start left; what is wrong,
    empty if nothing is.
    """
    step = "limits"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path) and not end(path):
            return f"limits: the control group {path} still has processes of a former start"
        enable(os.path.dirname(path))
        os.mkdir(path)
        for field, name, value in values:
            step = field
            if name != SWAP or os.path.exists(path + "/" + name):
                write(path + "/" + name, value)
    except OSError as error:
        return f"{step}: the control group {path}: {error.strerror or error}"
    return ""


def enable(path: str) -> None:
    """Hand on what a group has to those below it; nothing where that was done."""
    with open(path + "/cgroup.subtree_control", encoding="ascii") as file:
        done = file.read().split()
    with open(path + "/cgroup.controllers", encoding="ascii") as file:
        for each in file.read().split():
            if each in ("cpu", "memory", "pids", "io") and each not in done:
                write(path + "/cgroup.subtree_control", "+" + each)


def write(path: str, value: str) -> None:
    """Write to a file of a group."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # what is missing stays missing
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def kill(path: str) -> None:
    """Kill all that is in a group; kernels before 5.14 are told of each process."""
    try:
        write(path + "/cgroup.kill", "1")
    except FileNotFoundError:
        for pid in _inside(path):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    except OSError:
        pass


def _inside(path: str) -> list[int]:
    """The processes in a group and below it."""
    found = []
    try:
        with open(path + PROCESSES, encoding="ascii") as file:
            found += [int(line) for line in file]
        for name in os.listdir(path):
            if os.path.isdir(path + "/" + name):
                found += _inside(path + "/" + name)
    except OSError:
        pass
    return found


def end(path: str, seconds: float = END_SECONDS) -> bool:
    """Kill all that is in a group, and remove it; whether it is gone."""
    give_up = time.monotonic() + seconds
    while True:
        kill(path)
        if _removed(path):
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE)


def _removed(path: str) -> bool:
    """Remove a group with those that its workload made below it, if no process is in them."""
    try:
        for name in os.listdir(path):
            if os.path.isdir(path + "/" + name):
                _removed(path + "/" + name)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def oom_kills(path: str) -> int:
    """How many processes of a group the kernel killed because of the group's limit.

    An empty path: of this process's own groups, of any version.
    """
    if path:
        return _killed(path + "/memory.events")
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return 0
    found = 0
    for _, kinds, at in groups:
        if not kinds or "memory" in kinds.split(","):
            name = f"/memory{at}/memory.oom_control" if kinds else at + "/memory.events"
            found = max(found, _killed("/sys/fs/cgroup" + name))
    return found


def _killed(name: str) -> int:
    try:
        with open(name, encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except OSError:
        return 0


def take_place(spec: dict[str, Any], output: int, failed: int) -> bool:
    """In a child that is to become a program: lead a session, write to ``output``, and enter the group of the
    start; False: it cannot, as ``failed`` is told.
    """
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    if spec.get("group"):
        try:
            join(spec)
        except OSError as error:
            why = error.strerror or error
            os.write(failed, f"limits: {spec['group']} cannot be entered: {why}".encode())
            return False
    return True


def join(spec: dict[str, Any]) -> None:
    """Move this process into the group of its start.

    Raises:
        OSError: it cannot, although the start has limits.
    """
    try:
        write(spec["group"] + PROCESSES, "0")
    except OSError:
        if spec["limited"]:
            raise


PR_SET_CHILD_SUBREAPER = 36


def adopt(yes: int = 1) -> None:
    """Be the parent of all orphans of this process's children, so that none of them is out of reach."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, yes, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def kill_children() -> None:
    """Kill this process's children, also the orphans that it adopted."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return
    for pid in children:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def end_children(seconds: float = END_SECONDS) -> bool:
    """Kill and reap this process's children, and those that it adopts meanwhile; whether none is left.

    Where that takes too long, all descendants are stopped and killed: a tree of processes that forks at its
    leaves would else lose one generation at a time.
    """
    return _end_children(kill_children, seconds) or _end_children(_kill_descendants, END_SECONDS)


def _end_children(killing: Callable[[], None], seconds: float) -> bool:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return True
        killing()
        time.sleep(_PAUSE)
    return False


def _kill_descendants() -> None:
    found = _descendants()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            try:
                os.kill(pid, number)
            except OSError:
                pass


def _descendants() -> set[int]:
    """The children of this process, and theirs, also those of their threads."""
    found, ahead = set[int](), [os.getpid()]
    while ahead:
        tasks = f"/proc/{ahead.pop()}/task"
        try:
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/children", encoding="ascii") as file:
                    children = {int(pid) for pid in file.read().split()} - found
                ahead += children
                found |= children
        except OSError:
            pass  # it has ended
    return found


def ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; its name may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[19])


def exit_code(status: int) -> int:
    """Exit code, or minus the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap(main: int) -> int | None:
    """Reap all ended children; the exit code of this one if it is among them, else None."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main:
            code = exit_code(status)
