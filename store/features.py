"""The features that a pod needs of its node's agent and of a farm, and those that an agent reports (R11).

An agent's feature is ``runtime.<name>``, ``allow.<what>``, ``allow.<folder>``, ``signatures.<policy>`` or
``JOBS``. A folder allows everything below it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from store import artifacts, log_destinations
from store.canonical import builtins
from store.containers import Limits
from store.manifests import Manifest

JOBS = "jobs.1"
"""The agent keeps R29: it obeys ``vars``, ``hold`` and ``peers`` in intents, and tells how pods ended."""

ACCESS = "access.1"
"""The agent wants a one-time key of who reads pods and logs without another credential (R36)."""

EXEC = "exec.1"
"""The agent runs commands of people in its pods, by one-time keys (R42)."""

SIGNATURES = "signatures."
"""What the agent asks of pods that nobody signed stands behind it (R32)."""
ENFORCED = f"{SIGNATURES}enforce"
BOUND = f"{SIGNATURES}2"
"""The agent knows signatures that name the cluster; older agents take them for false."""

USAGE = "usage.1"
"""The agent tells farms what its pods use, by a one-time key of a purpose of its own."""

ADDRESS = "address.1"
"""The agent takes another session when its address changes; within one session it has one address."""

POD_AFFINITY = "pod-affinity.1"
"""The farm places pods by ``pod_affinity``; an older one would take no notice of it."""

ONE_SHOT = "one-shot.1"
"""The farm runs nothing again that ended successfully; an older one would, on a drain or a lost node."""

HOST_IP = "ports.host-ip"
"""The agent publishes a port at ``host_ip`` alone; an older one would publish it everywhere."""

INTERNAL_NETWORKS, FILE_ENCODINGS, TMPFS_OPTIONS = "networks.internal", "files.encoding", "mounts.options"
"""The agent makes networks without a way out, decodes files that are no text, and mounts with options."""

LEAVING = "leaving.1"
"""The agent lets a pod leave before it stops it (R39); an older one would send the signal at once."""

INIT, AFTER_STOP, SIDECARS = "init.1", "after-stop.1", "sidecars.1"
"""The agent runs commands before a workload begins and after it ended, and programs beside it (R43); an older
one would leave them out. The farm places such pods only on agents that do."""

CONTAINER_INIT = "container-init.1"
"""The agent runs the commands of ``init`` of containers, too; an older one would refuse such a pod."""

RESTART_AFTER = "restart-after.1"
"""The agent restarts a pod that stays unhealthy (``health.restart_after``); an older one would let it be."""

LOGS = "logs.1"
"""The agent sends output to ``logs.to``; an older one would keep it in its files alone."""

ARTIFACTS = "artifacts.1"
"""The agent fetches artifacts before a start; an older one would start the pod without them. The farm places
such pods only on agents that do."""

ZSTD = "artifacts.zstd"
"""The agent unpacks ``tar.zst``, by Python 3.14 or farmd's extra ``zstd``; the farm reads such pods."""

LIMITS = "runtime.limits"
"""The agent keeps ``limits`` of processes, by control groups of its own; an older one, or one without such
groups, has no means to."""
IO_WEIGHT, PROCESS_IO_WEIGHT = "limits.io-weight", "limits.process-io-weight"
"""The agent passes ``limits.io_weight`` on, and its kernel has such weights for processes."""

SECRETS = "secrets.1"
"""The agent opens the sealed secrets of a manifest at its start; an older one would start the pod without
them. The farm places such pods only on agents that do, and that have an identity for each."""
IDENTITY = "identity."
"""Begins the feature of an agent that has the identity of this recipient of age."""
IDENTITY_OF = "identity-of."
"""Begins the need for the identity of one of some recipients: ``identity-of.<group>/<one>,<other>``."""

CONFIG = "config.1"
"""The farm knows ``sources`` in the documents of apps; an older one would refuse such a document."""

FOLLOW = "follow.1"
"""The farm brings changed config keys to an owner that follows them; an older one would do nothing."""

SERVICE_PODS = "service-pods.1"
"""The farm knows documents of services that only name pods; an older one would refuse such a document."""

TEMPLATES = "templates.1"
"""The agent renders templates of files; an older one would write empty files. The farm places such pods only
on agents that do."""
PROCESS_FILES = "files.process"
"""The agent writes ``files`` of processes; an older one would start the pod without them."""

REGISTRY = "registry."
"""Begins the feature of an agent that knows the registry of artifacts of that name."""

CONTAINER_FEATURES = (HOST_IP, INTERNAL_NETWORKS, FILE_ENCODINGS, TMPFS_OPTIONS, IO_WEIGHT, CONTAINER_INIT)
"""What agents learned after their first containers; an older one would leave it out in silence."""

APART = "containers.apart"
"""Root in the engine's containers is nobody on the node: it has a user namespace, or is not root itself."""

PROCESS = "process"
"""The agent runs processes: every agent did before ``agent.allow`` had a word for it."""

PROCESSES, ROOT, NEW_PRIVILEGES = "processes", "root", "new-privileges"
DEVICE_RESERVATIONS, VOLUME_DRIVERS = "device-reservations", "volume-drivers"
VOLUMES, NETWORKS = "volumes", "networks"
LOCAL_SOURCES = "local-sources"
"""Artifacts may come from the node's own addresses, and from link-local ones such as cloud metadata."""
YOUNGER = frozenset({PROCESSES, ROOT, NEW_PRIVILEGES, DEVICE_RESERVATIONS, VOLUME_DRIVERS, VOLUMES})
"""The words that agents did not ask for at first: what started before them goes on without."""

ALLOWABLE = (
    PROCESSES,
    ROOT,
    NEW_PRIVILEGES,
    "privileged",
    "host-network",
    "host-pid",
    "devices",
    DEVICE_RESERVATIONS,
    "capabilities",
    "security-options",
    VOLUME_DRIVERS,
    VOLUMES,
    NETWORKS,
    LOCAL_SOURCES,
)

NETWORK = "network:"
"""Begins the word that allows one network by its name."""


def needed_of_farm(manifest: Manifest) -> list[str]:
    """The features that a farm must have to own pods of a manifest."""
    asked = {
        POD_AFFINITY: bool(manifest.placement.pod_affinity),
        ONE_SHOT: manifest.restart.policy != "always",
    }
    return [*(feature for feature, wants in asked.items() if wants), *needed_to_read(builtins(manifest))]


def needed_to_read(pod: Mapping[str, Any]) -> list[str]:
    """The features that a farm must have for a manifest in a document, where a person's values may be as they
    were written. An older farm knows no such fields, or would refuse them.
    """
    process, files = pod.get("runtime", "process") == "process", pod.get("files") or ()
    artifacts_ = pod.get("artifacts") or ()
    asked = {
        ARTIFACTS: bool(artifacts_),
        ZSTD: any(each.get("unpack") == "tar.zst" for each in artifacts_),
        SECRETS: bool(pod.get("sealed")),
        LIMITS: process and bool(pod.get("limits")),
        INIT: bool(pod.get("init")),
        CONTAINER_INIT: bool(pod.get("init")) and pod.get("runtime") == "container",
        AFTER_STOP: bool(pod.get("after_stop")),
        TEMPLATES: any(each.get("template") for each in files),
        PROCESS_FILES: process and bool(files),
        SIDECARS: bool(pod.get("sidecars")),
    }
    return [feature for feature, wants in asked.items() if wants]


def _has_zstd(manifest: Manifest) -> bool:
    return any(each.unpack == "tar.zst" for each in manifest.artifacts)


def limits_process(manifest: Manifest) -> bool:
    """Whether a manifest limits a process, for which its agent needs control groups."""
    return manifest.runtime == "process" and manifest.limits != Limits()


def inits_container(manifest: Manifest) -> bool:
    """Whether commands run before a container begins."""
    return manifest.runtime == "container" and bool(manifest.init)


def has_process_files(manifest: Manifest) -> bool:
    """Whether a process has files of its manifest."""
    return manifest.runtime == "process" and bool(manifest.files)


def needed(manifest: Manifest) -> tuple[str, ...]:
    """The features that a node's agent must have for a pod (``docs/workloads.md`` has the table)."""
    container, binds = manifest.container, {each.source for each in manifest.mounts if each.type == "bind"}
    asked = {
        ROOT: manifest.runtime != "container" and manifest.user == "root",
        VOLUME_DRIVERS: any(
            each.driver not in ("", "local") or each.options for each in manifest.volumes.values()
        ),
    }
    if container is not None:
        asked |= {
            "privileged": container.privileged,
            "host-network": container.network == "host",
            "host-pid": container.pid == "host",
            "devices": bool(container.devices),
            DEVICE_RESERVATIONS: bool(container.device_reservations),
            "capabilities": bool(container.cap_add),
            "security-options": bool(container.security_options),
        }
    sources = [each.source for each in manifest.artifacts]
    asked[LOCAL_SOURCES] = any(map(artifacts.is_local, sources))
    binds |= set(filter(None, map(artifacts.path_of, sources)))
    words = [*(name for name, wants in asked.items() if wants), *sorted(binds)]
    runtime = PROCESS if manifest.runtime == "process" else f"runtime.{manifest.runtime}"
    younger = {
        LEAVING: manifest.stop.leaves,
        RESTART_AFTER: manifest.health is not None and manifest.health.restart_after > 0,
        LOGS: bool(log_destinations.elsewhere(manifest.logs.to)),
        INIT: bool(manifest.init),
        CONTAINER_INIT: inits_container(manifest),
        AFTER_STOP: bool(manifest.after_stop),
        SIDECARS: bool(manifest.sidecars),
        ARTIFACTS: bool(manifest.artifacts),
        ZSTD: _has_zstd(manifest),
        SECRETS: bool(manifest.sealed),
        LIMITS: limits_process(manifest),
        IO_WEIGHT: manifest.limits.io_weight > 0 and manifest.runtime != "process",
        PROCESS_IO_WEIGHT: manifest.limits.io_weight > 0 and manifest.runtime == "process",
        HOST_IP: any(port.host_ip for port in manifest.ports.values()),
        INTERNAL_NETWORKS: container is not None and bool(container.internal),
        TEMPLATES: any(file.template for file in manifest.files),
        PROCESS_FILES: has_process_files(manifest),
        FILE_ENCODINGS: any(file.encoding for file in manifest.files),
        TMPFS_OPTIONS: any(mount.options for mount in manifest.mounts),
    }
    return (
        runtime,
        *(name for name, wants in younger.items() if wants),
        *(f"{REGISTRY}{name}" for name in sorted(set(filter(None, map(artifacts.registry_of, sources))))),
        *(f"allow.{word}" for word in words),
        *dict.fromkeys(
            f"{IDENTITY_OF}{each.group}/{','.join(each.recipients)}" for each in manifest.sealed.values()
        ),
    )


def lacking(needs: Collection[str], has: Collection[str]) -> list[str]:
    """The needs that an agent with these features cannot meet.

    One that names no features at all is older than they are, and runs processes.
    """
    return [
        need
        for need in needs
        if need not in has
        and not _below(need, has)
        and not _opens(need, has)
        and not (need == PROCESS and not has)
    ]


def _opens(need: str, has: Collection[str]) -> bool:
    """Whether the need is for the identity of a secret group, and one of them is there."""
    if not need.startswith(IDENTITY_OF):
        return False
    return any(f"{IDENTITY}{each}" in has for each in need.rpartition("/")[2].split(","))


def _below(need: str, has: Collection[str]) -> bool:
    """Whether the need is a path in one of the allowed folders."""
    path = posixpath.normpath(need.removeprefix("allow."))
    if not path.startswith("/"):
        return False
    folders = [each.removeprefix("allow.").rstrip("/") for each in has if each.startswith("allow./")]
    return any(path == (folder or "/") or path.startswith(folder + "/") for folder in folders)


_AS_ROOT = (
    *("root", "new-privileges", "privileged", "host-pid", "devices", "capabilities"),
    *("security-options", "volume-drivers"),
)
_SYSTEM = (
    *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "nix", "opt", "ostree"),
    *("proc", "root", "run", "sbin", "snap", "sys", "sysroot", "usr", "var"),
)


def root_by_farm(features: Collection[str]) -> str:
    """Why write access to a farm's keys makes somebody root on a node; empty: the node prevents it.

    A signed manifest may be root, too, but a person signed it.
    """
    if ENFORCED in features:
        return ""
    if ADDRESS not in features:
        return "its agent is older than agent.user, and runs processes as root if it is root"
    words = [word for word in _AS_ROOT if f"allow.{word}" in features]
    binds = sorted(each.removeprefix("allow.") for each in features if each.startswith("allow./"))
    words += [each for each in binds if each == "/" or each.split("/")[1] in _SYSTEM]
    reasons = [f"agent.allow has {', '.join(words)}"] if words else []
    shares_root = "runtime.container" in features and APART not in features
    if shares_root and not {PROCESS, "runtime.systemd"}.isdisjoint(features):
        # A process hands its descriptor of / to a container, whose root opens any file by it.
        reasons.append("it runs processes beside containers that run as the node's root")
    return f"{', '.join(reasons)}, and signatures are not required" if reasons else ""
