"""What a container engine of the tests leaves on the machine besides its folder, and how that is removed.

An engine ends with its ``with`` block, but not if its process is killed. Its containers then run on, and its
rules lead ports of this machine to them: a later test that is given such a port listens on it and is never
reached. So each engine first removes what engines left whose processes are gone. It knows them by a file in
their folder that a living process holds locked.

Podman lets one container at a time change the network, but only among those of one engine. Two engines that
find a chain missing both make it, and one of them fails; so ``LOCK`` is for all engines of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX = "farmd-engine-"
LOCK = Path("/run/farmd-engines.lock")
"""Held by whoever changes the network for an engine, takes a block of addresses, or clears."""
BLOCKS = range(128, 255)
_MARK = "alive"


class Traces:
    """The bridges, addresses and rules of the engine whose folder it is, and whose block its name has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.block = int(folder.name.removeprefix(PREFIX))
        self.bridge = f"t{self.block}"
        self._addresses = f" 10.{self.block}."
        self._mark: IO[str] | None = None

    @classmethod
    def begin(cls) -> Traces:
        """A new folder and block, this process's until it ends, once what dead engines left is removed."""
        with _alone():
            _clear_left()
            folders = [Path(tempfile.gettempdir(), f"{PREFIX}{block}") for block in BLOCKS]
            traces = cls(random.choice([each for each in folders if not each.exists()]))
            traces.folder.mkdir(mode=0o700)
            traces._mark = (traces.folder / _MARK).open("w")
            fcntl.flock(traces._mark, fcntl.LOCK_EX)
        return traces

    def forget_network(self) -> None:
        """Remove what the machine's next start would not have."""
        self.forget_rules("nat")
        self.forget_rules("filter")
        for line in system("ip", "-brief", "link").splitlines():
            if line.startswith(f"{self.bridge}-"):
                system("ip", "link", "delete", line.split()[0])

    def forget_rules(self, table: str, about: str = "") -> None:
        """Remove the rules of a table that name an address or a container of the engine."""
        names = [self._addresses, *self._containers()]
        for rule in system("iptables-save", "-t", table).splitlines():
            if rule.startswith("-A ") and about in rule and any(name in rule for name in names):
                system("iptables", "--wait", "-t", table, "-D", *shlex.split(rule)[1:])

    def remove(self) -> None:
        """Remove network, mounts and folder; nothing of the engine runs any more."""
        self.forget_network()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in mounts:
            if mount.startswith(f"{self.folder}/"):
                system("umount", "-l", mount)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._mark is not None:
            self._mark.close()

    def kill_all(self) -> None:
        """SIGKILL all containers, and what looks after them."""
        containers = self._containers()
        names = [name.encode() for name in (str(self.folder), *containers)]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                said = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
                if any(name in said for name in names):
                    os.kill(int(process.name), signal.SIGKILL)
        for container in containers:
            system("runc", "delete", "--force", container)

    def _containers(self) -> list[str]:
        """The ids of its containers."""
        return [each.name for each in (self.folder / "run").glob("*-containers/*") if each.is_dir()]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear_left() -> None:
    """Remove what engines left whose processes are gone."""
    for mark in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_MARK}"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), mark.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            traces = Traces(mark.parent)
            traces.kill_all()
            traces.remove()


def system(*words: str) -> str:
    """Run a program that may find nothing to do; its output."""
    done = subprocess.run(
        words, env={"PATH": path()}, check=False, capture_output=True, text=True, timeout=30
    )
    return done.stdout


def path() -> str:
    """Where programs are, those for root alone included."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
