"""The log files of one process: what a shim, or an agent for a container, appends to them, and rotates.

Shims run this file, too: it imports nothing of the project, and as little of the standard library as
possible.
"""

# pathlib would cost shims more memory than the rest of this file:
# ruff: noqa: PTH104, PTH108, PTH110, PTH116, PTH123, TID251

from __future__ import annotations

import errno
import os
import time

LOG = "current.log"
MARKS = "current.marks"
MARKS_BYTES = 32768
"""For each so many bytes of marks there is one second more between two of them."""


class Log:
    """Appends to ``current.log`` and renames it to ``current.log.1``, ``.2``, … when it is full.

    If the disk fails, lines are lost and a later line says so; the workload is never blocked or ended.
    Beside each file, a file of marks says, once a second at most, at which time and in which start its output
    was written. Without room for marks, only these times are lost. Its first line, ``@N``, says how many
    bytes the files before it had, so that a reader knows how much was rotated away before it came.
    """

    def __init__(self, directory: str, max_bytes: int, keep: int, start: str = "") -> None:
        self.path = directory + "/" + LOG
        self.marks = directory + "/" + MARKS
        self.start = start
        self.marked = 0.0
        self.marks_size = 0
        self.max_bytes = max_bytes
        self.keep = keep
        self.fd = -1
        self.size = 0
        self.before = -1
        self.lost = 0
        self.why = ""

    def write(self, data: bytes) -> None:
        """Append; output that needs several files is split at line ends if possible."""
        if self.fd >= 0 and os.fstat(self.fd).st_nlink == 0:
            self.close()  # somebody removed the file: its output could not be read any more
        while data:
            if self.fd < 0 and not self._open():
                self.lost += len(data)
                return
            room = self.max_bytes - self.size
            if len(data) <= room:
                part = len(data)
            else:
                part = data.rfind(b"\n", 0, max(room, 0)) + 1
                if part == 0 and self.size == 0:
                    part = self.max_bytes
            if part == 0:
                self._rotate()
                continue
            self.mark()
            try:
                written = os.write(self.fd, data[:part])
            except OSError as error:
                self._lose(error)
                self.lost += len(data)
                return
            self.size += written
            data = data[written:]

    def begin(self) -> None:
        """Mark where the start begins, so that it is known even if it writes nothing."""
        self.close()
        if self._open():
            self.mark()

    def mark(self) -> None:
        """Mark that what comes now is written now."""
        now = time.time()
        # The more marks there are, the rarer they are: a log that grows by bytes must not have larger marks.
        if abs(now - self.marked) < max(1.0, self.marks_size / MARKS_BYTES):
            return
        self.marked = now
        try:
            line = f"{self.size} {now:.3f} {self.start}\n".encode()
            fd = os.open(self.marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                write_all(fd, line)
                self.marks_size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        except OSError:
            pass

    def _open(self) -> bool:
        try:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            former, self.size = self.size, os.fstat(self.fd).st_size
            if self.before < 0:
                self.before = self._written_before(".1" if self.size == 0 else "")
            elif self.size == 0:
                self.before += former
            if self.size == 0:
                self._begin_marks()
            if self.lost:
                note = f"\nfarmd: {self.lost} bytes of output were lost here: {self.why}\n"
                self.size += os.write(self.fd, note.encode())
                self.lost = 0
        except OSError as error:
            self._lose(error)
        return self.fd >= 0

    def _begin_marks(self) -> None:
        self.marked = 0.0
        self.marks_size = 0
        try:
            fd = os.open(self.marks, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                write_all(fd, f"@{self.before}\n".encode())
            finally:
                os.close(fd)
        except OSError:
            pass

    def _written_before(self, number: str) -> int:
        """How many bytes were written before the present file, as its marks say, or those of the last one."""
        try:
            with open(self.marks + number, "rb") as file:
                found = int(file.readline(32).strip(b"@\n"))
            return found + os.stat(self.path + number).st_size if number else found
        except (OSError, ValueError):
            return 0

    def _lose(self, error: OSError) -> None:
        self.why = trouble(error)
        self.close()

    def close(self) -> None:
        """Let go of the file; the next output opens it again."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _rotate(self) -> None:
        self.close()
        try:
            if self.keep == 0:
                os.unlink(self.path)
            for number in range(self.keep, 0, -1):
                for path in (self.marks, self.path):
                    older = path + "." + str(number)
                    newer = path + ("." + str(number - 1) if number > 1 else "")
                    if os.path.exists(newer):
                        os.rename(newer, older)
        except OSError:
            # Without the right to rename, truncating is the only way to stay within the limit.
            try:
                os.truncate(self.path, 0)
            except OSError:
                pass


def trouble(error: OSError) -> str:
    """What is wrong with the disk, in words for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full"
    return error.strerror or str(error)


def write_all(fd: int, data: bytes) -> None:
    """Write all data; one write may take only a part of it."""
    while data:
        data = data[os.write(fd, data) :]
