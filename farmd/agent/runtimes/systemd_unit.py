"""Translates a manifest into the properties of a transient unit of systemd. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farmd.agent.runtimes.container_config import Bind, name_of
from farmd.agent.runtimes.port import Launch
from store.containers import Mount
from store.manifests import Manifest

if TYPE_CHECKING:
    from dbus_fast import Variant

UNLIMITED = 2**64 - 1
RECURSIVE = 0x4000  # MS_REC: what is mounted below the source, too


def unit_of(node: str, instance: str) -> str:
    """The one unit of a node's instance."""
    return name_of(node, instance) + ".service"


def has_view(manifest: Manifest) -> bool:
    """Whether the workload sees other files than its node."""
    return bool(manifest.mounts or manifest.files or manifest.secrets)


def source_of(mount: Mount, volumes: Path) -> Path:
    """Where on the node a mount's content lies."""
    return Path(mount.source) if mount.type == "bind" else volumes / mount.source / mount.subpath


def properties(
    node: str, launch: Launch, words: Sequence[str], variables: Mapping[str, str],
    binds: Sequence[Bind], oom_score: int,
) -> list[tuple[str, Variant]]:  # fmt: skip
    """The unit of a start, whose shim is run by ``words``; descriptor 0 is its stdin, 1 its answer, 2 the
    memory of its lease, if it has one (``lease.py``).

    All mounts of the manifest but those in memory are binds. ``oom_score`` is the shim's.
    """
    from dbus_fast import Variant

    manifest, limits = launch.manifest, launch.manifest.limits
    # The shim is a task, too, and so is the thread that holds its lease.
    tasks = limits.pids + (2 if manifest.stop_after > 0 else 1) if limits.pids else UNLIMITED
    found: dict[str, tuple[str, Any]] = {
        "Description": ("s", f"farmd: {launch.instance} on {node}"),
        "ExecStart": ("a(sasb)", [(words[0], list(words), False)]),
        "Environment": ("as", [f"{name}={value}" for name, value in variables.items()]),
        "StandardInputFileDescriptor": ("h", 0),
        "StandardOutputFileDescriptor": ("h", 1),
        "StandardErrorFileDescriptor": ("h", 2 if manifest.stop_after > 0 else 1),
        # The shim records ends: a unit that is over has nothing more to tell.
        "CollectMode": ("s", "inactive-or-failed"),
        # Who stops the unit asks the shim, which asks the workload; what is left then is killed.
        "KillMode": ("s", "mixed"),
        "KillSignal": ("i", int(signal.SIGTERM)),
        "TimeoutStopUSec": ("t", round(manifest.stop.grace * 1e6) + 1),
        "OOMPolicy": ("s", "continue"),
        "OOMScoreAdjust": ("i", oom_score),
        "TasksMax": ("t", tasks),
    }
    if limits.memory:
        found |= {"MemoryMax": ("t", limits.memory), "MemorySwapMax": ("t", 0)}
    if limits.cpu:
        found["CPUQuotaPerSecUSec"] = ("t", round(limits.cpu * 1e6))
    return [(name, Variant(*value)) for name, value in (found | _view(manifest, binds)).items()]


def _view(manifest: Manifest, binds: Sequence[Bind]) -> dict[str, tuple[str, Any]]:
    """What the workload sees in place of what the node has there."""
    writable: list[tuple[str, str, bool, int]] = []
    read_only = [(here, there, False, 0) for here, there in binds]
    memory = []
    for mount in manifest.mounts:
        if mount.type == "tmpfs":
            options = [f"size={mount.size}"] if mount.size else []
            options += [f"mode={mount.mode:o}"] if mount.mode else []
            options += [*mount.options, *(["ro"] if mount.read_only else [])]
            memory.append((mount.target, ",".join(options)))
        else:
            kept = read_only if mount.read_only else writable
            kept.append((mount.source, mount.target, False, RECURSIVE))
    found = {
        "BindPaths": ("a(ssbt)", writable),
        "BindReadOnlyPaths": ("a(ssbt)", read_only),
        "TemporaryFileSystem": ("a(ss)", memory),
    }
    return {name: value for name, value in found.items() if value[1]}
