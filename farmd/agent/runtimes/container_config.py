"""Translates a manifest into the Docker API's words. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farmd.agent.environment import NOTHING, stop_signal, with_own
from farmd.agent.model import Identity
from farmd.agent.runtimes.runtime import Launch
from store import images
from store.containers import Mount
from store.manifests import Init, Manifest
from store.variables import RESULT, words

NODE = "farmd.node"
INIT = "farmd.init"
"""In place of ``farmd.node``: the container runs a command of ``init`` (R43)."""
LEASE = "farmd.lease"
NO_FILES: Mapping[str, Path] = {}
KEPT_LOG_BYTES = 16 * 1024 * 1024

Bind = tuple[str, str]
"""(path on the node, path in the container), read-only."""

STARTS = "/run/farmd"
"""Where a container sees the files of its start (R29)."""


def labels(node: str, launch: Launch) -> dict[str, str]:
    """What tells of a start even where all of the agent's records are lost."""
    logs = launch.manifest.logs
    return {
        NODE: node,
        "farmd.instance": launch.instance,
        "farmd.manifest": launch.sha,
        "farmd.start": launch.start,
        "farmd.started": repr(launch.started),
        "farmd.restart": str(launch.restart),
        "farmd.ports": json.dumps(dict(launch.ports)),
        "farmd.logs": f"{logs.max_bytes} {logs.keep}",
        # These also where they are empty: an image or a manifest may claim others.
        LEASE: lease_of(launch.manifest),
        INIT: "",
    }


def lease_of(manifest: Manifest) -> str:
    """What a guard needs to know of a pod's lease, empty without one: ``stop_after``, grace, signal (R27)."""
    if manifest.stop_after <= 0:
        return ""
    return f"{manifest.stop_after!r} {manifest.stop.grace!r} {stop_signal(manifest).name}"


def identity(found: Mapping[str, str], handle: str, pid: int) -> Identity:
    """The identity of a start, from its container's labels.

    Raises:
        KeyError, ValueError: the labels are not those of an agent.
    """
    return Identity(
        instance=found["farmd.instance"],
        manifest=found["farmd.manifest"],
        start=found["farmd.start"],
        started=float(found["farmd.started"]),
        restart=int(found["farmd.restart"]),
        ports=json.loads(found["farmd.ports"]),
        runtime="container",
        handle=handle,
        pid=pid,
    )


def environment(
    manifest: Manifest, node: str, instance: str, ports: Mapping[str, int], given: Mapping[str, str] = NOTHING
) -> dict[str, str]:
    """The manifest's variables and farmd's own; the image has the others.

    A port is the one on which the container must listen.
    """
    inner = {name: _inner(manifest, name, number) for name, number in ports.items()}
    return with_own(manifest, node, instance, inner, given)


def _inner(manifest: Manifest, name: str, number: int) -> int:
    return manifest.ports[name].container or number


def create_body(
    node: str, launch: Launch, binds: Sequence[Bind], files: Mapping[str, Path] = NO_FILES
) -> dict[str, Any]:
    """The body of the request that makes the container; ``files`` are those of its start, by variable."""
    manifest, container = launch.manifest, launch.manifest.container
    assert container is not None
    given = {**launch.vars, **{name: f"{STARTS}/{path.name}" for name, path in files.items()}}
    variables = environment(manifest, node, launch.instance, launch.ports, given)
    published = container.network not in ("host", "none")
    ports = {
        f"{_inner(manifest, name, number)}/{port.protocol}": [
            {"HostPort": str(number)} | ({"HostIp": port.host_ip} if port.host_ip else {})
        ]
        for name, number in launch.ports.items()
        if published and (port := manifest.ports.get(name)) is not None
    }
    body: dict[str, Any] = {
        "Image": container.image,
        "Cmd": words([*manifest.command, *manifest.args], variables) or None,
        "Entrypoint": container.entrypoint or None,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": manifest.user,
        "WorkingDir": manifest.working_directory,
        "Hostname": container.hostname,
        "Labels": {**container.labels, **labels(node, launch)},
        # The agent checks health, and the image's own check would only cost.
        "Healthcheck": {"Test": ["NONE"]},
        "ExposedPorts": {port: {} for port in ports},
        "HostConfig": _host(launch, ports, binds, files),
    }
    first = next(iter(container.networks), "")
    if first:
        aliases = {"Aliases": container.networks[first]}
        body["NetworkingConfig"] = {"EndpointsConfig": {first: aliases}}
    return {key: value for key, value in body.items() if value not in (None, "", [], {})}


def init_body(
    node: str, launch: Launch, step: Init, binds: Sequence[Bind], files: Mapping[str, Path] = NO_FILES
) -> dict[str, Any]:
    """The body of the request that makes the container of a command of ``init``: it is like the pod's, but
    publishes no port, and its networks do not know it by the pod's names.
    """
    body = create_body(node, launch, binds, files)
    variables = dict(each.split("=", 1) for each in body.get("Env", ()))
    body["Entrypoint"] = words(step.command, variables)
    # An image's labels must not make a pod of it.
    body["Labels"] = {NODE: "", LEASE: "", INIT: node, "farmd.instance": launch.instance}
    for name in ("Cmd", "ExposedPorts"):
        body.pop(name, None)
    body["HostConfig"].pop("PortBindings", None)
    for config in body.get("NetworkingConfig", {}).get("EndpointsConfig", {}).values():
        config.clear()
    return body


def _host(
    launch: Launch, ports: Mapping[str, Any], binds: Sequence[Bind], files: Mapping[str, Path]
) -> dict[str, Any]:
    manifest, container = launch.manifest, launch.manifest.container
    assert container is not None
    limits = manifest.limits
    mounts = [_mount(mount) for mount in manifest.mounts if not mount.options]
    mounts += [{"Type": "bind", "Source": here, "Target": there, "ReadOnly": True} for here, there in binds]
    mounts += [
        {"Type": "bind", "Source": str(path), "Target": f"{STARTS}/{path.name}", "ReadOnly": name != RESULT}
        for name, path in files.items()
    ]
    limited = {name: (number, number) for name, number in manifest.ulimits.items()}
    limited |= {name: (limit.soft, limit.hard) for name, limit in container.ulimits.items()}
    host: dict[str, Any] = {
        "PortBindings": dict(ports),
        "NetworkMode": container.network or next(iter(container.networks), ""),
        "Mounts": mounts,
        "Tmpfs": {mount.target: _tmpfs(mount) for mount in manifest.mounts if mount.options},
        "Memory": limits.memory,
        # Without this a container could use as much swap again.
        "MemorySwap": limits.memory,
        "NanoCpus": round(limits.cpu * 1e9),
        "PidsLimit": limits.pids,
        # Engines have weights from 10 to 1000, which they map on those of the kernel.
        "BlkioWeight": round(10 + (limits.io_weight - 1) * 990 / 9999) if limits.io_weight else 0,
        "Init": container.init,
        "GroupAdd": container.groups,
        "ReadonlyRootfs": container.read_only,
        "Privileged": container.privileged,
        "PidMode": container.pid,
        "Dns": container.dns,
        "DnsSearch": container.dns_search,
        "DnsOptions": container.dns_options,
        "ExtraHosts": [f"{name}:{address}" for name, address in container.hosts.items()],
        "CapAdd": container.cap_add,
        "CapDrop": container.cap_drop,
        "Sysctls": container.sysctls,
        "SecurityOpt": container.security_options,
        "ShmSize": container.shared_memory,
        "Devices": [
            {
                "PathOnHost": each.host,
                "PathInContainer": each.container or each.host,
                "CgroupPermissions": each.permissions,
            }
            for each in container.devices
        ],
        "DeviceRequests": [
            {
                "Driver": each.driver,
                "Count": each.count,
                "DeviceIDs": each.device_ids or None,
                "Capabilities": each.capabilities or [["gpu"]],
                "Options": each.options,
            }
            for each in container.device_reservations
        ],
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in limited.items()],
        # The agent copies the output into its own files; the engine keeps what the agent has yet to read.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": str(KEPT_LOG_BYTES)}},
    }
    return {key: value for key, value in host.items() if value not in (None, "", 0, False, [], {})}


def _mount(mount: Mount) -> dict[str, Any]:
    made: dict[str, Any] = {"Type": mount.type, "Target": mount.target, "ReadOnly": mount.read_only}
    if mount.source:
        made["Source"] = mount.source
    if mount.type == "bind" and mount.propagation:
        made["BindOptions"] = {"Propagation": mount.propagation}
    if mount.type == "tmpfs" and (mount.size or mount.mode):
        sizes = {"SizeBytes": mount.size, "Mode": mount.mode}
        made["TmpfsOptions"] = {key: value for key, value in sizes.items() if value}
    if mount.type == "volume" and (mount.no_copy or mount.subpath):
        made["VolumeOptions"] = {"NoCopy": mount.no_copy, "Subpath": mount.subpath}
    return made


def _tmpfs(mount: Mount) -> str:
    """The options of a file system in memory, which the engine's other form does not take."""
    sizes = [f"size={mount.size}"] if mount.size else []
    modes = [f"mode={mount.mode:o}"] if mount.mode else []
    return ",".join(["ro" if mount.read_only else "rw", *sizes, *modes, *mount.options])


def registry_auth(config: str, image: str) -> dict[str, str] | None:
    """The login for an image's registry in a file like ``~/.docker/config.json``; None without any.

    Raises:
        ValueError: the text is no such file.
    """
    registry = images.parse(image).registry
    found = images.login(config, registry)
    if found is None:
        return None
    if found.identity_token:
        return {"identitytoken": found.identity_token, "serveraddress": registry}
    return {"username": found.user, "password": found.password, "serveraddress": registry}
