"""A real disk that a test can freeze: ext4 on a loop device, in a mount namespace of its own. Needs root.

While it is frozen, whatever changes it waits in the kernel and cannot be ended. The ``with`` block thaws it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.small_disk import SmallDisk


class FrozenDisk(SmallDisk):
    """An ext4 of some megabytes mounted on an existing folder; ``path`` is where everybody finds it."""

    def __enter__(self) -> Self:
        image = self._folder.with_name(self._folder.name + ".img")
        with image.open("wb") as file:
            file.truncate(self._megabytes << 20)
        self._make(image)
        self._frozen = False
        self._hold(f'mount -o loop "{image}" "$0"')
        return self

    def _make(self, image: Path) -> None:
        words = ["mkfs.ext4", "-q", "-F", str(image)]
        made = subprocess.run(words, check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.fail(f"this test needs mkfs.ext4 (e2fsprogs) and a loop device, as root: {made.stderr}")

    def __exit__(self, *details: object) -> None:
        self.thaw()
        super().__exit__(*details)

    def freeze(self) -> None:
        """Let every change wait from now on."""
        subprocess.run(["fsfreeze", "--freeze", str(self.path)], check=True)
        self._frozen = True

    def thaw(self) -> None:
        """Let what waits go on."""
        if self._frozen:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.path)], check=True)
            self._frozen = False
