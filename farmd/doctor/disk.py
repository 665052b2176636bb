"""Checks the size of Consul's log and the room on its disk, where Consul runs on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from farmd.doctor.model import Finding, Report
from store.words import size_text

LOG_BYTES = 1 << 30
FREE_BYTES = 1 << 30
FACT = "consul disk"


def check(directory: str, node_id: str) -> Report:
    """The fact, and what is wrong with it; ``directory`` is empty if Consul does not tell where its data is.

    The agent's data directory holds its node id, so a folder of the same name elsewhere is not taken for it.
    """
    if not directory:
        return _unknown("Consul does not report its data directory")
    folder = Path(directory)
    try:
        if (folder / "node-id").read_text(errors="replace").strip() != node_id:
            return _unknown(f"{directory} of this machine belongs to another Consul")
        log = (folder / "raft" / "raft.db").stat().st_size
        free = shutil.disk_usage(folder).free
    except (FileNotFoundError, NotADirectoryError):
        return _unknown(f"no server of Consul has {directory} on this machine")
    except PermissionError:
        return _unknown(f"this user may not read {directory}")
    except OSError as error:
        return _unknown(f"{directory} of this machine cannot be read: {error.strerror}")
    fact = f"{directory}: raft.db {size_text(log)}, {size_text(free)} free"
    return Report({FACT: fact}, tuple(judge(directory, log, free)))


def judge(directory: str, log: int, free: int) -> Iterator[Finding]:
    """What is wrong with a log of that size beside that much room, in bytes."""
    needed = max(FREE_BYTES, 2 * log)
    if free < needed:
        yield Finding(
            "consul-disk",
            f"consul{directory}",
            f"free: found {size_text(free)}, expected at least {size_text(needed)}, enough for a snapshot"
            " and a copy of the log: on a full disk every write fails",
            "free some space, or give Consul a larger disk",
        )
    if log > LOG_BYTES:
        yield Finding(
            "consul-log",
            f"consul{directory}/raft/raft.db",
            f"found {size_text(log)}, expected at most {size_text(LOG_BYTES)}: the file never shrinks, and"
            " each write of a large one takes longer",
            "one server after the other: consul leave, empty its data directory, start it. A single server:"
            " consul snapshot save, empty it, consul snapshot restore",
        )


def _unknown(why: str) -> Report:
    return Report({FACT: f"unknown: {why}"})
