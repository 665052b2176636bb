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
from store.presence import boot_id, is_own, start_ticks, user

SHIM = "farmd/agent/shim.py"
UNKNOWN = "unknown"
"""The manifest of a process whose records are all lost: no intent names it, so each intent replaces it."""


def running(instances: Path) -> Iterator[Identity]:
    """What can be told of each workload whose shim runs and works in a directory below ``instances``."""
    for pid, name, _ in processes(SHIM, instances):
        with contextlib.suppress(OSError, InputInvalid):
            found = _workload(pid, valid_instance(name))
            if found is not None:
                yield found


def shims(instances: Path) -> set[str]:
    """The instances below ``instances`` whose shims run, also those that have no workload yet."""
    found = set()
    for _, name, _ in processes(SHIM, instances):
        with contextlib.suppress(InputInvalid):
            found.add(valid_instance(name))
    return found


def processes(script: str, instances: Path, more: int = 0) -> Iterator[tuple[int, str, list[str]]]:
    """This agent's processes of a script whose command line ends with an instance's directory and so many
    ``more`` words: the process, the name of that directory, and these words.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
                *before, directory = words[: len(words) - more] or [""]
                named = len(before) > 1 and before[-1].endswith(script)
                if named and Path(directory).parent == instances and is_own(int(entry.name)):
                    yield int(entry.name), Path(directory).name, words[len(words) - more :]


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


def _workload(shim: int, instance: str) -> Identity | None:
    ticks = start_ticks(shim)
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
        user=user(leaders[0]),
    )


def _seconds(ticks: int) -> float:
    """Ticks since boot as seconds since the epoch."""
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")
