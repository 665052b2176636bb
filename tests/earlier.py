"""The code of an earlier version, from the project's own history: for tests that run both side by side.

It is unpacked once for each commit below ``.cache/earlier/`` and run with this clone's python: a process
with that folder as its working directory and in PYTHONPATH imports nothing of today's.
"""

from __future__ import annotations

import fcntl
import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "earlier"
BEFORE_THE_FRAME = "d2235106bfb2119221b2f277644bec4d618ee257"
BEFORE_ROLLOUTS = "7bcdf25b7b8ee2d2c552fdbca621c2d07efc6afd"
BEFORE_DEPLOYMENTS = "1d2b4bc1e25fbeacb92edd47b68e92de17192cdb"
WITH_EVERY_KIND = "609b0b56243f77674690840617e83f8c11ba3089"
PACKAGES = ("alerting", "farmd", "scheduler", "store")


class NoHistory(Exception):
    """The commit cannot be had; the message says in one line how to get it."""


def tree(commit: str = BEFORE_THE_FRAME, repository: Path = ROOT, cache: Path = CACHE) -> Path:
    """The folder with the packages of a commit.

    Raises:
        NoHistory: the clone does not hold the commit.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = cache / commit
        if not folder.exists():
            _unpack(commit, repository, folder)
    return folder


def _unpack(commit: str, repository: Path, folder: Path) -> None:
    command = ["git", "-C", str(repository), "archive", commit, *PACKAGES]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
        raise NoHistory(
            f"this clone lacks commit {commit[:12]}, the earlier version that upgrades are tested from:"
            f" `git fetch --unshallow` gets it ({said})"
        )
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(fresh, filter="data")
    fresh.rename(folder)


def imported(folder: Path) -> dict[str, Path]:
    """Where a process that runs in this folder imports each package from."""
    names = ", ".join(PACKAGES)
    show = f"import {names}\nfor each in {names}: print(each.__file__)"
    command, environ = [sys.executable, "-c", show], {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return dict(zip(PACKAGES, map(Path, done.stdout.splitlines()), strict=True))
