"""The lock on the agent's state directory, which keeps a second agent out, and those of shims (R26)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import structlog

from farmd.agent.errors import StateLocked
from farmd.agent.shim import trouble

log = structlog.get_logger()


def take(root: Path) -> int:
    """Lock a directory, even a read-only one; returns the descriptor that holds the lock.

    Raises:
        StateLocked: another agent holds the lock.
        OSError: there is no lock file, and none can be created.
    """
    path = root / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise StateLocked(
            f"state_dir: {root} is in use by another agent (pid {holder}); stop it, or give this"
            " one a directory of its own",
            path=str(root),
            pid=holder,
        ) from error
    try:
        os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))
    except OSError as error:
        # The process id is for people only; the lock does not depend on it.
        log.warning("state.lock_unsigned", path=str(path), error=trouble(error))
    return lock


def in_place(root: Path, lock: int) -> bool:
    """Whether a descriptor's lock file is still the one in the directory."""
    try:
        found = (root / "lock").stat()
    except OSError:
        return False
    mine = os.fstat(lock)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def held(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
