"""The files that one start of a pod exchanges with the agent: how it ended, in its own words (R29).

They lie in a folder of their own for each start, below the instance's directory, so that what an earlier
start wrote is never taken for the word of a later one. What a workload left in place of its file is not
trusted.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from farmd.agent.environment import Account
from store.manifests import Manifest

RESULT = "FARMD_RESULT"
MESSAGE_BYTES = 1024

_NAMES = {RESULT: "result"}


def wanted(manifest: Manifest) -> bool:
    """Whether its starts have such files: those that may end for good."""
    return manifest.restart.policy != "always"


def lay_out(folder: Path, start: str, manifest: Manifest, user: Account | None) -> None:
    """Make the files of a start, which runs as ``user``. None: as the agent, or as any in a container."""
    if not wanted(manifest):
        return
    folder.mkdir(exist_ok=True, mode=0o711)
    # Who reaches the file in a container is not known, so nobody else on the node may reach the folder.
    (folder / start).mkdir(exist_ok=True, mode=0o700 if user is None else 0o711)
    path = folder / start / _NAMES[RESULT]
    path.touch(exist_ok=False)
    if manifest.runtime == "container":
        path.chmod(0o666)
    elif user is not None:
        os.chown(path, user.uid, user.gid)


def paths(folder: Path, start: str) -> dict[str, Path]:
    """The files of a start, by the variable that tells the workload where each is."""
    found = {name: folder / start / file for name, file in _NAMES.items()}
    return {name: path for name, path in found.items() if path.exists()}


def message(folder: Path, start: str) -> str:
    """The end of what a start wrote into its result; empty without any."""
    try:
        # It may be anything by now, such as a pipe that nobody writes to.
        fd = os.open(folder / start / _NAMES[RESULT], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return ""
        data = os.pread(fd, MESSAGE_BYTES, max(0, found.st_size - MESSAGE_BYTES))
    finally:
        os.close(fd)
    return data.decode("utf-8", "ignore").strip()


def keep_only(folder: Path, start: str) -> None:
    """Remove the files of other starts."""
    if folder.exists():
        for each in folder.iterdir():
            if each.name != start:
                shutil.rmtree(each, ignore_errors=True)
