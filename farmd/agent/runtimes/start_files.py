"""The files of one start of a pod: who its peers are, and what it says of its end (R29).

They lie in a folder of their own for each start, below the instance's directory, so that what an earlier
start wrote is never taken for the word of a later one. What a workload left in place of its file is not
trusted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from farmd.agent.removal import Trash
from farmd.agent.runtimes.runtime import Launch
from farmd.agent.users import Account
from store import peers
from store.variables import HOSTFILE, PEERS_FILE, RESULT

MESSAGE_BYTES = 1024

_NAMES = {RESULT: "result", PEERS_FILE: "peers.json", HOSTFILE: "hostfile"}
_VARIABLES = "variables.json"


def lay_out(folder: Path, launch: Launch, user: Account | None) -> None:
    """Make the files of a start for the user of the workload; None: any user, in a container."""
    other = user if user is not None and user.other else None
    ends = launch.manifest.restart.policy != "always"
    if not (ends or launch.vars or launch.peers):
        return
    folder.mkdir(exist_ok=True, mode=0o711)
    # Who reads and writes in a container is not known, so nobody else on the node may reach the folder.
    here = folder / launch.start
    here.mkdir(mode=0o700 if other is None else 0o711)
    (here / _VARIABLES).write_bytes(msgspec.json.encode(dict(launch.vars)))
    if launch.peers:
        named = msgspec.json.decode(launch.peers, type=peers.Peers)
        _write(here / _NAMES[PEERS_FILE], launch.peers)
        _write(here / _NAMES[HOSTFILE], peers.hostfile(named).encode())
    if ends:
        path = here / _NAMES[RESULT]
        path.touch()
        if launch.manifest.runtime == "container":
            path.chmod(0o666)
        elif other is not None:
            os.chown(path, other.uid, other.gid)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)


def paths(folder: Path, start: str) -> dict[str, Path]:
    """The files of a start, by the variable that tells the workload where each is."""
    found = {name: folder / start / file for name, file in _NAMES.items()}
    return {name: path for name, path in found.items() if path.exists()}


def variables(folder: Path, start: str) -> dict[str, str]:
    """The variables that its intent gave a start, and those that tell where its files are."""
    try:
        given = msgspec.json.decode((folder / start / _VARIABLES).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        given = {}
    return given | {name: str(path) for name, path in paths(folder, start).items()}


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


def keep_only(folder: Path, start: str, trash: Trash) -> None:
    """Remove the files of other starts."""
    if folder.exists():
        for each in folder.iterdir():
            if each.name != start:
                trash.throw(each)
