"""Finds workloads whose records were lost while no agent ran, in the kernel's table of processes (R26).

A shim's command line ends with its instance's directory: this is the mark that no disk can lose. Without it
an agent that finds its state directory empty would start a second process beside the first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from farmd.agent.model import Identity, Record
from store.errors import InputInvalid
from store.keys import valid_instance
from store.process import boot_id, is_own, start_ticks

SHIM = "farmd/agent/shim.py"
UNKNOWN = "unknown"
"""The manifest of a process whose records are all lost: no intent names it, so each intent replaces it."""


def running(instances: Path) -> Iterator[Identity]:
    """What can be told of each workload whose shim runs and works in a directory below ``instances``."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, InputInvalid):
                found = _workload(int(entry.name), instances)
                if found is not None:
                    yield found


def shims(instances: Path) -> set[str]:
    """The instances below ``instances`` whose shims run, also those that have no workload yet."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, InputInvalid):
                found.add(_instance(int(entry.name), instances))
    return found - {""}


def recorded(identity: Identity, record: Record | None) -> Identity:
    """The identity with the start as the agent's record has it, if the record is not lost."""
    if record is None or not record.start:
        return identity
    return msgspec.structs.replace(
        identity,
        manifest=record.running,
        start=record.start,
        started=record.started,
        ports=record.ports,
        restart=record.restarted,
    )


def _workload(shim: int, instances: Path) -> Identity | None:
    instance, ticks = _instance(shim, instances), start_ticks(shim)
    if not instance:
        return None
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    # The workload leads its group; orphans that it left to the shim do not, as a rule, or came later.
    leaders = [pid for pid in map(int, children) if os.getpgid(pid) == pid]
    began = start_ticks(leaders[0]) if leaders else None
    if ticks is None or began is None:
        return None
    return Identity(
        boot=boot_id(),
        shim=shim,
        shim_ticks=ticks,
        pid=leaders[0],
        ticks=began,
        instance=instance,
        manifest=UNKNOWN,
        start=f"lost-{began}",
        started=_seconds(began),
        user=_user(leaders[0]),
    )


def _instance(pid: int, instances: Path) -> str:
    """The instance whose shim a process is; empty if it is none."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    if len(words) < 3 or not words[-2].endswith(SHIM) or Path(words[-1]).parent != instances:
        return ""
    return valid_instance(Path(words[-1]).name) if is_own(pid) else ""


def _user(pid: int) -> str:
    """The number of the user that a process began as."""
    lines = Path(f"/proc/{pid}/status").read_bytes().split(b"\n")  # a name may hold other ends of lines
    return next(line.split()[1] for line in lines if line.startswith(b"Uid:")).decode()


def _seconds(ticks: int) -> float:
    """Ticks since boot as seconds since the epoch."""
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")
