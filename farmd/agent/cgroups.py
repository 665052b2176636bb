"""The control groups (version 2) of this node's processes: where they lie, and what a pod uses.

They lie beside the agent's own group and not below it. systemd 252 starts a service's main process in the
group of its unit, and the kernel refuses that while groups below it have controllers: an agent whose pods
run on could not be started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog

from farmd.agent import group
from farmd.agent.errors import StartFailed
from farmd.agent.model import name_of
from store import features
from store.manifests import Manifest

log = structlog.get_logger()

ROOT = Path("/sys/fs/cgroup")
UNIT, BESIDE = "farmd-agent.service", "farmd-pods"
CPU_PERIOD = 100_000
WEIGHTS = ("io.weight", "io.bfq.weight")
COMMAND = "..command"
"""Behind the name of a workload's group: one of a command beside it. Names of instances have no ``..``."""
COMMAND_SECONDS = 1.0
NEEDED = ("cpu.max", "memory.max", "pids.max")


class Cgroups:
    """The groups of one agent's processes; ``why`` says why there are none, empty if there are.

    ``state`` tells its groups from those of another agent of that name on this machine.
    """

    def __init__(self, setting: str, node: str, state: Path) -> None:
        self._setting = setting
        self._node = node
        self._mark = hashlib.sha256(str(state).encode()).hexdigest()[:8]
        self._base: Path | None = None
        self._weight = ""
        self._commands = itertools.count()
        self.why = "it was not tried yet"

    def look(self) -> None:
        """Try whether a group can be made and entered, unless that is known."""
        if self._base is not None and self._base.parent.exists():
            return
        before, self._base = self.why, None
        try:
            base = self._place()
            self._try(base)
        except OSError as error:
            self.why = f"agent.cgroup: {error.filename or self._setting}: {error.strerror or error}"
        except StartFailed as error:
            self.why = error.message
        else:
            self._base, self.why = base, ""
        if self.why != before:
            log.info("agent.cgroups", base=str(self._base or ""), lacks=self.why)

    def _place(self) -> Path:
        """Where the groups lie.

        Raises:
            StartFailed: nowhere.
        """
        if self._setting == "none":
            raise StartFailed("agent.cgroup is none", field="agent.cgroup")
        if not (ROOT / "cgroup.controllers").exists():
            raise StartFailed(f"{ROOT} is no hierarchy of control groups of version 2", field="agent.cgroup")
        if self._setting != "auto":
            return Path(self._setting)
        own = group_of("self")
        if Path(own).name != UNIT:
            found = f"found auto, and the group {own or '/'}, which is not that of {UNIT}"
            raise StartFailed(f"agent.cgroup: {found}: name a folder below {ROOT}", field="agent.cgroup")
        return (ROOT / own.lstrip("/")).parent / BESIDE

    def _try(self, base: Path) -> None:
        """Make a group, and move a process into it.

        Raises:
            StartFailed: it lacks controllers, or has processes of its own. OSError: it cannot be done.
        """
        tried = base / f"{name_of(self._node, 'try')}-{os.getpid()}"
        if problem := group.create(str(tried), []):
            raise StartFailed(problem.replace("limits:", "agent.cgroup:", 1), field="agent.cgroup")
        try:
            lacking = [each for each in NEEDED if not (tried / each).exists()]
            if lacking:
                raise StartFailed(f"agent.cgroup: {base} has no {', '.join(lacking)}", field="agent.cgroup")
            with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                group.write(f"{tried}{group.PROCESSES}", str(process.pid))
            self._weight = next((each for each in WEIGHTS if (tried / each).exists()), "")
        finally:
            group.end(str(tried))

    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        if self._base is None:
            return []
        return [features.LIMITS, *([features.PROCESS_IO_WEIGHT] if self._weight else [])]

    def preflight(self, manifest: Manifest) -> None:
        """Refuse limits that this node cannot keep.

        Raises:
            StartFailed: naming the field.
        """
        if not features.limits_process(manifest):
            return
        if self._base is None:
            raise StartFailed(f"limits: this node cannot limit processes: {self.why}", field="limits")
        if manifest.limits.io_weight and not self._weight:
            raise StartFailed("limits.io_weight: the node's kernel has no such weights", field="limits")

    def start(self, instance: str, manifest: Manifest) -> dict[str, Any]:
        """What the shim of a start is told of its group."""
        if self._base is None:
            return {"group": "", "values": [], "limited": False}
        return {
            "group": str(self._base / self._name(instance)),
            "values": values(manifest, self._weight),
            "limited": features.limits_process(manifest),
        }

    def _name(self, instance: str) -> str:
        return f"{name_of(self._node, instance)}..{self._mark}"

    @contextlib.asynccontextmanager
    async def beside(self, own: str, manifest: Manifest) -> AsyncIterator[str]:
        """A group beside a workload's ``own``, with its limits, for one command of a check or of ``stop``.

        Nothing outlives it. Its path is empty where the workload has no limits.

        Raises:
            StartFailed: it cannot be made.
        """
        if not own or not features.limits_process(manifest):
            yield ""
            return
        path = f"{own}{COMMAND}{next(self._commands)}"
        try:
            if problem := await asyncio.to_thread(group.create, path, values(manifest, self._weight)):
                raise StartFailed(problem, field="limits")
            yield path
        finally:
            await asyncio.to_thread(group.end, path, COMMAND_SECONDS)

    def remove(self, instance: str) -> None:
        """Remove what is left of an instance: the groups of a shim, or of an agent, that was killed."""
        own = self._name(instance)
        for found in self._base.iterdir() if self._base is not None and self._base.is_dir() else ():
            if found.name == own or found.name.startswith(own + COMMAND):
                group.end(str(found))


def values(manifest: Manifest, weight: str) -> list[tuple[str, str, str]]:
    """The (field, file, value) of a manifest's limits."""
    limits, found = manifest.limits, list[tuple[str, str, str]]()
    if limits.memory:
        found.append(("limits.memory", "memory.max", str(limits.memory)))
        # Without this a process could use as much swap again.
        found.append(("limits.memory", group.SWAP, "0"))
    if limits.cpu:
        found.append(("limits.cpu", "cpu.max", f"{round(limits.cpu * CPU_PERIOD)} {CPU_PERIOD}"))
    if limits.pids:
        found.append(("limits.pids", "pids.max", str(limits.pids)))
    if limits.io_weight and weight:
        found.append(("limits.io_weight", weight, f"default {limits.io_weight}"))
    return found


def folder_of(process: int) -> str:
    """The folder of a process's group of version 2; empty on a machine whose controllers are of version 1."""
    found = group_of(process) if (ROOT / "cgroup.controllers").exists() else ""
    return f"{ROOT}{found}" if found.strip("/") else ""


def group_of(process: str | int) -> str:
    """The path of a process's group of version 2 below its root; empty where it has none, or is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return ""
