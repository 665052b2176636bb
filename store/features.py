"""What a pod needs of its node's agent, and what an agent says that it can do (R11).

A feature is ``runtime.<name>``, ``allow.<what>``, ``allow.<folder>``, ``signatures.<policy>`` or ``JOBS``. A
folder allows everything below it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from store.manifests import Manifest

JOBS = "jobs.1"
"""The agent keeps R29: it obeys ``vars``, ``hold`` and ``peers`` in intents, and tells how pods ended."""

SIGNATURES = "signatures."
"""What the agent asks of pods that nobody signed stands behind it (R32)."""
ENFORCED = f"{SIGNATURES}enforce"
BOUND = f"{SIGNATURES}2"
"""The agent knows signatures that name the cluster; older agents take them for false."""

HOST_IP = "ports.host-ip"
"""The agent publishes a port at ``host_ip`` alone; an older one would publish it everywhere."""

ALLOWABLE = ("privileged", "host-network", "host-pid", "devices", "capabilities", "security-options")


def needed(manifest: Manifest) -> tuple[str, ...]:
    """The features that a node's agent must have for a pod; every agent can run a process."""
    if manifest.runtime == "process":
        return ()
    found = [f"runtime.{manifest.runtime}"]
    if (container := manifest.container) is not None:
        asked = (
            container.privileged,
            container.network == "host",
            container.pid == "host",
            container.devices,
            container.cap_add,
            container.security_options,
        )
        found += [f"allow.{name}" for name, wants in zip(ALLOWABLE, asked, strict=True) if wants]
        found += [HOST_IP] if any(port.host_ip for port in manifest.ports.values()) else []
    binds = {mount.source for mount in manifest.mounts if mount.type == "bind"}
    return (*found, *(f"allow.{folder}" for folder in sorted(binds)))


def lacking(needs: Collection[str], has: Collection[str]) -> list[str]:
    """The needs that an agent with these features cannot meet."""
    return [need for need in needs if need not in has and not _below(need, has)]


def _below(need: str, has: Collection[str]) -> bool:
    """Whether the need is a path in one of the allowed folders."""
    path = posixpath.normpath(need.removeprefix("allow."))
    if not path.startswith("/"):
        return False
    folders = [each.removeprefix("allow.").rstrip("/") for each in has if each.startswith("allow./")]
    return any(path == (folder or "/") or path.startswith(folder + "/") for folder in folders)
