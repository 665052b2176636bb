"""Removes what a workload made, which may be anything: as deep, as odd and as locked as it could make it.

What is to go is moved into one folder, the trash, in no time, so that its name is free again. There each
folder's own folders are moved beside it before it is removed, so no path is longer than two names. Nothing
recurses, follows a link or enters another mount, and it ends: what cannot be removed stays, with a reason.
What was thrown away is emptied by turns, so a huge folder delays no other one; it is work for a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from itertools import count, islice
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BATCH = 10_000
TRIES = 20
"""A process that was left over may go on filling a folder while it is emptied."""
RWX = 0o700

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
_REASONS = {
    errno.EPERM: "it is immutable, or belongs to another user",
    errno.EBUSY: "something is mounted there",
    errno.EXDEV: "something is mounted there",
    errno.ENOTEMPTY: "something in it cannot be removed, or a process keeps writing into it",
}


class Trash:
    """A folder of the agent's own, on the disk of what is thrown into it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._emptying = threading.Lock()
        self._thrown: deque[str] = deque()
        self._stopped = False

    def throw(self, path: Path) -> str:
        """Move a file or a folder into the trash; why it stays where it is, empty if it does not."""
        try:
            self._folder.mkdir(mode=RWX, parents=True, exist_ok=True)
            trash = os.open(self._folder, FOLDER)
            try:
                self._thrown.append(self._moved(str(path), None, f"{path.name}.", trash))
            finally:
                os.close(trash)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return reason(error)
        return ""

    def empty(self) -> dict[str, str] | None:
        """Remove what lies there; what stays, with the reasons. None: another thread is at it."""
        if not self._emptying.acquire(blocking=False):
            return None
        try:
            trash = os.open(self._folder, FOLDER)
        except FileNotFoundError:
            return {}
        else:
            try:
                return self._emptied(trash)
            finally:
                os.close(trash)
        finally:
            self._emptying.release()

    def stop(self) -> None:
        """Have ``empty`` end soon, because the process does; the next one goes on."""
        self._stopped = True

    def _emptied(self, trash: int) -> dict[str, str]:
        left: dict[str, str] = {}
        waiting: dict[str, list[str]] = {}
        self._thrown.clear()
        fresh = os.listdir(trash)
        while (fresh or waiting) and not self._stopped:
            for name in fresh:
                waiting.setdefault(_origin(name), []).append(name)
            for origin in list(waiting):
                self._turn(trash, waiting[origin], left)
                if not waiting[origin]:
                    del waiting[origin]
            fresh = [self._thrown.popleft() for _ in range(len(self._thrown))]
        return left

    def _turn(self, trash: int, waiting: list[str], left: dict[str, str]) -> None:
        """Take one entry, and at most ``BATCH`` of what is in it."""
        name = waiting.pop()
        try:
            if not self._remove(trash, name, waiting):
                waiting.append(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            left[name] = reason(error)

    def _remove(self, trash: int, name: str, waiting: list[str]) -> bool:
        """Remove one entry of the trash, unless too much is in it for one turn; whether that is done. The
        folders in it become entries, and wait.
        """
        try:
            folder = _opened(trash, name)
        except NotADirectoryError:  # a link is none, too
            os.unlink(name, dir_fd=trash)
            return True
        try:
            if _mount(folder) != _mount(trash):
                raise OSError(errno.EBUSY, "")
            if not self._empty(folder, name, trash, waiting):
                return False
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=trash)
        return True

    def _empty(self, folder: int, name: str, trash: int, waiting: list[str]) -> bool:
        tries, problem, batch = TRIES, None, _listed(folder)
        while batch and tries:
            tries -= len(batch) < BATCH
            stay = 0
            for entry in batch:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(self._moved(entry.name, folder, name, trash))
                    else:
                        os.unlink(entry.name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    stay, problem = stay + 1, error
            if len(batch) == BATCH > stay:
                return False
            batch = [] if stay == len(batch) else _listed(folder)
        if problem is not None:
            raise problem
        return True

    def _moved(self, source: str, folder: int | None, name: str, trash: int) -> str:
        """Move what is called so into the trash, where ``name`` begins its new name; returns that."""
        locked = True
        while True:
            fresh = f"{_origin(name)}.{next(self._numbers)}"
            try:
                os.rename(source, fresh, src_dir_fd=folder, dst_dir_fd=trash)
            except PermissionError as error:
                if not locked or error.errno != errno.EACCES:
                    raise
                # Only root moves a folder to another one that it may not write itself.
                os.close(_opened(folder, source))
                locked = False
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            else:
                return fresh


def _origin(name: str) -> str:
    """What was thrown away, of which an entry of the trash was a part."""
    return name.rpartition(".")[0] or name


def reason(error: OSError) -> str:
    """Why something cannot be removed, for people."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def _opened(parent: int | None, name: str) -> int:
    """A folder; one that its owner may not enter is made enterable first.

    Raises:
        NotADirectoryError: it is none.
    """
    try:
        fd = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        found = os.open(name, FOLDER | os.O_PATH, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{found}", RWX)  # noqa: PTH101
        finally:
            os.close(found)
        fd = os.open(name, FOLDER, dir_fd=parent)
    if os.fstat(fd).st_mode & RWX != RWX:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, RWX)
    return fd


def _listed(folder: int) -> list[os.DirEntry[str]]:
    """The first entries of a folder."""
    with os.scandir(folder) as entries:
        return list(islice(entries, BATCH))


def _mount(fd: int) -> str:
    """The mount that a descriptor's file is of."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))
