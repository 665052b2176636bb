"""The intended content of the agent's files, and which files could not be written yet (R26).

A disk that is full, read-only, gone or silent ends no loop and no agent: content that cannot be written is
kept in memory and written as soon as that is possible. ``put`` is for content that may wait; ``write`` is for
content that must be on disk before the action that it describes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from farmd.agent.disk import Disk, DiskSilent
from farmd.agent.errors import StateUnsaved
from farmd.agent.log_files import trouble

log = structlog.get_logger()

# With less free space no pod starts: its record, its shim's records and a little output need room.
ROOM_BYTES = 1 << 20


class Files:
    """The files of one agent below ``root``; ``make_folder`` creates a missing folder.

    ``unsaved`` has the files that could not be written, with the reasons.
    """

    def __init__(self, root: Path, make_folder: Callable[[Path], None], disk: Disk) -> None:
        self._disk = disk
        self._root = root
        self._make_folder = make_folder
        self._kept: dict[Path, tuple[bytes, bool]] = {}
        self.unsaved: dict[Path, str] = {}

    def put(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Write a file if its content differs, or keep the content in memory until it can be written."""
        known = self._kept.get(path)
        self._kept[path] = (data, sync)
        if known is None or known[0] != data or path in self.unsaved:
            self._save(path)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Write a file now.

        Raises:
            StateUnsaved: the file cannot be written; it stays as it was.
        """
        try:
            self._write(path, data, sync=sync)
        except OSError as error:
            if isinstance(error, DiskSilent) and path in self._kept:
                # It may still be written, without what it describes: then the former content follows.
                self.unsaved[path] = trouble(error)
            raise refusal(self._root, trouble(error)) from error
        self._kept[path] = (data, sync)
        self.unsaved.pop(path, None)

    def hold(self, path: Path, data: bytes) -> None:
        """Remember content that another process wrote, and write it again if the file gets lost."""
        self._kept[path] = (data, True)

    def require(self, path: Path) -> None:
        """Raise an error while a file is not saved.

        Raises:
            StateUnsaved: the file is not saved.
        """
        if path in self.unsaved:
            raise refusal(self._root, self.unsaved[path])

    def drop(self, *paths: Path) -> None:
        """Forget files, or all files of folders; the caller removes them from the disk."""
        gone = set(paths)
        for path in [path for path in self._kept if path in gone or path.parent in gone]:
            self._kept.pop(path, None)
            self.unsaved.pop(path, None)

    def restore(self, *, all_files: bool = False) -> None:
        """Write the files that are not saved or that somebody removed, or all files."""
        paths = list(self._kept)
        try:
            gone = self._disk.call(lambda: {path for path in paths if not os.path.lexists(path)})
        except DiskSilent:
            return
        for path in paths:
            if all_files or path in self.unsaved or path in gone:
                self._save(path)

    def _save(self, path: Path) -> None:
        data, sync = self._kept[path]
        try:
            self._write(path, data, sync=sync)
        except OSError as error:
            why = trouble(error)
            if why not in self.unsaved.values():
                log.warning("state.not_saved", path=str(path), error=why)
            self.unsaved[path] = why
        else:
            if self.unsaved.pop(path, "") and not self.unsaved:
                log.info("state.saved_again", path=str(self._root))

    def _write(self, path: Path, data: bytes, *, sync: bool) -> None:
        def work() -> None:
            self._make_folder(path.parent)
            write_atomically(path, data, sync=sync)

        self._disk.call(work)


def refusal(root: Path, why: str) -> StateUnsaved:
    """The error of an action that must not happen while the state cannot be written."""
    return StateUnsaved(f"{why}: state_dir {root} cannot be written", path=str(root))


def write_atomically(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace a file's content atomically; with ``sync`` it also survives a power failure."""
    fresh = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        fresh.rename(path)
        if sync:
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError:
        # An incomplete file is useless, and may occupy the last free bytes.
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def require_room(root: Path) -> None:
    """Refuse a start on a disk that is almost full.

    Raises:
        StateUnsaved: too little is free for a process to be recorded.
    """
    try:
        found = os.statvfs(root)
    except OSError as error:
        raise refusal(root, trouble(error)) from error
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    if free * found.f_frsize < ROOM_BYTES:
        raise refusal(root, "disk full")
