"""The identity of a process: boot id, process id and start time, because process ids are used again."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENDED = frozenset({b"Z", b"X"})


def boot_id() -> str:
    """The id of this machine's present boot; empty if the kernel does not tell."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone, hidden or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in _ENDED else int(fields[19])


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not asked for its exit code yet."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in _ENDED


def is_own(pid: int) -> bool:
    """Whether a process is of this process's own user and sees the same processes.

    Anybody may begin a process whose command line is that of a shim or a guard: a workload as its user, the
    root of a container in its namespace, and a set-user-ID program with another real user.

    Raises:
        OSError: it is gone, or hidden.
    """
    users, spaces = _status(pid)
    return set(users) == {str(os.geteuid())} and len(spaces) == len(_status(os.getpid())[1])


def user(pid: int) -> str:
    """The number of the user that a process began as.

    Raises:
        OSError: it is gone, or hidden.
    """
    return _status(pid)[0][0]


def _status(pid: int) -> tuple[list[str], list[str]]:
    """The users of a process, and its ids in this namespace of processes and in each below it."""
    # Only the kernel writes the ends of lines: it escapes them in names, but no other character.
    lines = Path(f"/proc/{pid}/status").read_bytes().decode("utf-8", "replace").split("\n")
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return found.get("Uid", []), found.get("NSpid", [])


def _stat(pid: int) -> list[bytes]:
    """The kernel's fields of a process from its state on; empty if it is gone or hidden."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The process name in parentheses may contain parentheses and spaces.
    return stat.rsplit(b")", 1)[1].split()
