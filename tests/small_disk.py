"""A real file system of a few megabytes, which a test can fill: a tmpfs in a mount namespace of its own.

Root needs nothing but ``unshare``; anybody else also needs user namespaces. The mount is reached through the
process that holds it, so that nobody else needs to enter the namespace; it ends with the ``with`` block.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Self

import pytest


class SmallDisk:
    """A tmpfs mounted on an existing folder; ``path`` is where everybody finds it."""

    def __init__(self, folder: Path, megabytes: int = 4) -> None:
        self._folder = folder
        self._megabytes = megabytes

    def __enter__(self) -> Self:
        self._hold(f'mount -t tmpfs -o size={self._megabytes}m tmpfs "$0"')
        return self

    def _hold(self, mount: str) -> None:
        """Mount it by a command, and hold it until the end of the block."""
        script = f"{mount} && echo mounted && exec sleep infinity"
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        self._holder = subprocess.Popen(
            ["unshare", "--mount", *as_root, "sh", "-c", script, str(self._folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "mounted\n":
            pytest.fail(
                "this test mounts a disk: run it as root with CAP_SYS_ADMIN, or allow user namespaces"
                f" (found: {self._holder.stderr.read().strip()})"
            )
        self.path = Path(f"/proc/{self._holder.pid}/root{self._folder}")

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    def read_only(self) -> None:
        """Refuse every write to a file that is opened from now on, until ``writable``.

        A second mount that cannot be written lies over the first, so files that are open do not prevent it.
        """
        while True:
            self._inside("mount", "--bind", str(self._folder), str(self._folder))
            try:
                self._inside("mount", "-o", "remount,bind,ro", str(self._folder))
            except subprocess.CalledProcessError:
                self.writable()  # somebody opened a file of the second mount before it was read-only
            else:
                return

    def writable(self) -> None:
        """End of ``read_only``."""
        self._inside("umount", "--lazy", str(self._folder))

    def _inside(self, *command: str) -> None:
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount"]
        if os.geteuid() != 0:
            enter += ["--user", "--preserve-credentials"]
        subprocess.run([*enter, *command], check=True)

    def fill(self) -> None:
        """Leave no room for a single byte more."""
        with (self.path / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        """Give the room back."""
        (self.path / "ballast").unlink()
