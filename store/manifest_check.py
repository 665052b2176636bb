"""Checks a manifest for values that cannot work although their types are right, before it is stored.

An error is one line that names the field. The agent checks a manifest again when it reads one, because
a writer may have skipped this check.
"""

from __future__ import annotations

import base64
import ipaddress
import math
import re
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from store import artifacts, log_destinations, secrets
from store.containers import Container, File, Mount, OnChange, Secret
from store.errors import InputInvalid, refuse
from store.images import parse
from store.keys import valid_name, valid_segment
from store.manifests import MAIN, MAX_MANIFEST_BYTES, AfterStop, HealthCheck, Init, Manifest, canonical
from store.mistakes import shown
from store.nodes import is_volume_name
from store.reality import Reality

# Checks the parts of a manifest that only containers have, for ``manifest_check``.

Mistake = tuple[str, object, str]
"""(field, found, expected)."""

MAX_FILES_BYTES = 128 * 1024
MOST_MEMORY, MOST_CORES, MOST_PIDS = 2**60, 100_000, 2**22
"""Kernels have no more; what is larger is a mistake, such as bytes in place of cores."""

_CONTAINER_HAS = "the runtime 'container' has"
_SECRET = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}")
_SYSCTL = re.compile(r"[a-z0-9_]+([./][a-zA-Z0-9_-]+)+")
_PROCESS_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TMPFS_OPTION = re.compile(r"exec|noatime|(uid|gid|nr_inodes)=[0-9]{1,10}")

_MODES = {"host", "none", "bridge", "default", "container", "pasta", "slirp4netns"}
"""What engines take for no network's name, but for a way out of their networks."""


def mistakes(manifest: Manifest) -> Iterator[Mistake]:
    """What cannot work of a container or a unit, or of a process that has parts of one."""
    if manifest.runtime != "container":
        yield from _of_others(manifest)
    elif manifest.container is None:
        yield "container", "nothing", "at least the container's image"
    else:
        yield from _of_container(manifest.container, manifest)
    for at, mount in enumerate(manifest.mounts):
        yield from _of_mount(mount, f"mounts[{at}]")
    for at, file in enumerate(manifest.files):
        yield from _of_file(file, f"files[{at}]", process=manifest.runtime == "process")
        yield from _of_template(file, f"files[{at}]")
    for at, secret in enumerate(manifest.secrets):
        yield from _of_file(secret, f"secrets[{at}]")
    yield from artifacts.mistakes(manifest.artifacts, manifest.runtime)
    yield from _of_targets(manifest)
    for name in manifest.volumes:
        if not is_volume_name(name):
            yield "volumes", name, "a name of 1 to 63 of letters, digits, '.', '_' and '-'"
    for at, file in enumerate(manifest.files):
        if file.encoding and not _is_base64(file.content):
            yield f"files[{at}].content", file.content, "base64, as its encoding says"
    size = sum(len(f"{file.content}{file.template}".encode()) for file in manifest.files)
    if size > MAX_FILES_BYTES:
        yield "files", f"{size} bytes", f"at most {MAX_FILES_BYTES} bytes in all"
    yield from _of_limits(manifest)
    yield from _of_secrets(manifest)


def _of_secrets(manifest: Manifest) -> Iterator[Mistake]:
    """What cannot work of the secrets that a manifest has as ciphertext."""
    used = [(f"secret_env.{name}", each) for name, each in manifest.secret_env.items()]
    used += [
        (f"secrets[{at}].secret", each.secret) for at, each in enumerate(manifest.secrets) if each.secret
    ]
    yield from secrets.mistakes(manifest.sealed, used)
    for name in manifest.secret_env:
        if manifest.runtime == "container":
            yield f"env.{name}", "a secret", secrets.IN_A_FILE
        if not name or "=" in name or name in manifest.env:
            yield f"env.{name}", name, "a variable name without '=', once"
    names = [each.name for each in manifest.secrets if each.secret]
    for name in {each for each in names if names.count(each) > 1}:
        yield "secrets", name, "a name of its own for each file"


def _of_others(manifest: Manifest) -> Iterator[Mistake]:
    """What others than containers do not have: a workload would run without what its file says."""
    shared = ("mounts", "volumes")
    lacking = ("container",) if manifest.runtime == "systemd" else ("container", *shared)
    if manifest.runtime == "process":
        yield from _of_process_secrets(manifest)
    for name in lacking:
        if getattr(manifest, name) != getattr(Manifest(id=manifest.id), name):
            others = "the runtimes 'container' and 'systemd' have" if name in shared else _CONTAINER_HAS
            yield name, "a value", f"nothing: only {others} it"
    for at, mount in enumerate(manifest.mounts):
        for name in ("propagation", "no_copy"):
            if getattr(mount, name):
                yield f"mounts[{at}].{name}", getattr(mount, name), f"nothing: only {_CONTAINER_HAS} it"
    for name, volume in manifest.volumes.items():
        if volume.driver != "local" or volume.options:
            yield f"volumes.{name}", "a driver or options", f"neither: only {_CONTAINER_HAS} them"
    for name, port in manifest.ports.items():
        if port.container:
            yield f"ports.{name}.container", port.container, f"nothing: only {_CONTAINER_HAS} it"
        if port.host_ip:
            yield f"ports.{name}.host_ip", port.host_ip, f"nothing: only {_CONTAINER_HAS} it"


def _of_process_secrets(manifest: Manifest) -> Iterator[Mistake]:
    """A process sees the node's files as they are, so nothing can be shown to it under a path."""
    for at, each in enumerate(manifest.secrets):
        if not each.secret:
            yield (
                f"secrets[{at}]",
                each.name,
                "a sealed secret: only containers and units have files of the node",
            )
        if each.path:
            yield f"secrets[{at}].path", each.path, "nothing: a process finds the file in $FARMD_SECRETS"


def _of_container(container: Container, manifest: Manifest) -> Iterator[Mistake]:
    try:
        parse(container.image)
    except InputInvalid:
        yield "container.image", container.image, "an image such as postgres:16 or registry.example/web:1.4"
    if container.network and container.networks:
        yield "container.networks", sorted(container.networks), f"none beside the network {container.network}"
    for name, port in manifest.ports.items():
        if not 0 <= port.container <= 65535:
            yield f"ports.{name}.container", port.container, "0 (the same port) to 65535"
        if port.container and container.network == "host":
            yield f"ports.{name}.container", port.container, "nothing: the container has the node's network"
        if port.host_ip and container.network == "host":
            yield f"ports.{name}.host_ip", port.host_ip, "nothing: the container has the node's network"
        if port.host_ip and not _is_address(port.host_ip):
            yield f"ports.{name}.host_ip", port.host_ip, "an IP address of the node, such as 127.0.0.1"
        if container.network == "none":
            yield f"ports.{name}", name, "no ports: the container has no network"
    for name in container.internal:
        if name not in container.networks:
            yield (
                "container.internal",
                name,
                f"one of its networks ({', '.join(container.networks) or 'none'})",
            )
    for name in container.networks:
        if not is_volume_name(name) or name in _MODES:
            yield "container.networks", name, "the name of a bridge network"
    for at, device in enumerate(container.devices):
        if not device.host.startswith("/dev/") or ".." in device.host.split("/"):
            yield f"container.devices[{at}].host", device.host, "a path below /dev"
        if not device.permissions or set(device.permissions) - set("rwm"):
            yield f"container.devices[{at}].permissions", device.permissions, "some of r, w and m"
    for name in container.sysctls:
        if not _SYSCTL.fullmatch(name):
            yield "container.sysctls", name, "a name such as net.core.somaxconn"
    if container.shared_memory < 0:
        yield "container.shared_memory", container.shared_memory, "0 or more bytes"
    yield from _container_texts(container)


def _container_texts(container: Container) -> Iterator[Mistake]:
    for name in ("entrypoint", "groups", "dns", "dns_search", "dns_options", "cap_add", "cap_drop"):
        for text in getattr(container, name):
            if not text:
                yield f"container.{name}", text, "a text that is not empty"
    for name, address in container.hosts.items():
        if not name or not address or ":" in name:
            yield "container.hosts", name, "a host's name and its address"


def _of_mount(mount: Mount, field: str) -> Iterator[Mistake]:
    yield from _of_path(mount.target, f"{field}.target")
    if mount.type == "volume" and not is_volume_name(mount.source):
        yield f"{field}.source", mount.source, "a volume's name of 1 to 63 of letters, digits, '.', '_', '-'"
    if mount.type == "bind":
        yield from _of_path(mount.source, f"{field}.source")
    if mount.type == "tmpfs" and mount.source:
        yield f"{field}.source", mount.source, "nothing: a tmpfs has no source"
    if mount.subpath and (mount.type != "volume" or ".." in mount.subpath.split("/")):
        yield f"{field}.subpath", mount.subpath, "a path inside a volume, without '..'"
    if mount.options and mount.type != "tmpfs":
        yield f"{field}.options", mount.options, "none: only a tmpfs has them"
    for option in mount.options:
        if not _TMPFS_OPTION.fullmatch(option):
            yield f"{field}.options", option, "exec, noatime, uid=N, gid=N or nr_inodes=N"
    if mount.size < 0 or not 0 <= mount.mode <= 0o7777:
        yield f"{field}.size or mode", [mount.size, oct(mount.mode)], "0 or more bytes, a mode up to 0o7777"


def _of_template(file: File, field: str) -> Iterator[Mistake]:
    """What cannot work of a template; its syntax is checked where a person writes it."""
    change = file.on_change
    if not file.template:
        if change != OnChange() or file.splay:
            yield f"{field}.on_change or splay", "a value", "neither beside content, which never changes"
        return
    if file.content or file.encoding:
        yield f"{field}.template", "content or encoding beside it", "one of them: it is rendered"
    if not 0 <= file.splay <= LONGEST_SPLAY:
        yield f"{field}.splay", file.splay, f"0 to {LONGEST_SPLAY:g} seconds"
    if change.signal.upper().removeprefix("SIG") not in SIGNALS:
        yield f"{field}.on_change.signal", change.signal, "a signal such as HUP"
    if (change.do == "command") != bool(change.command):
        yield f"{field}.on_change", change.command, "a command with do: command, and only there"


def _of_file(file: File | Secret, field: str, *, process: bool = False) -> Iterator[Mistake]:
    if isinstance(file, Secret) and not _SECRET.fullmatch(file.name):
        yield f"{field}.name", file.name, "the name of a file in the node's agent.secrets_dir"
    if process and isinstance(file, File):
        if not _PROCESS_FILE.fullmatch(file.path):
            yield f"{field}.path", file.path, "a file name: a process finds the file in $FARMD_FILES"
        if file.uid or file.gid:
            yield f"{field}.uid or gid", [file.uid, file.gid], "neither: a process owns its files"
    elif isinstance(file, File) or file.path:
        yield from _of_path(file.path, f"{field}.path")
    if not 0 <= file.mode <= 0o777 or min(file.uid, file.gid) < 0:
        yield (
            f"{field}.mode, uid or gid",
            [oct(file.mode), file.uid, file.gid],
            "a mode up to 0o777, ids from 0",
        )


def _of_path(path: str, field: str) -> Iterator[Mistake]:
    if not path.startswith("/") or path == "/" or ".." in path.split("/") or "\0" in path or ":" in path:
        yield field, path, "an absolute path without '..' and ':', and not the root"


def _of_targets(manifest: Manifest) -> Iterator[Mistake]:
    """Two things under one path: the engine's choice of one of them would be a surprise."""
    seen = set()
    paths = [("mounts", mount.target) for mount in manifest.mounts]
    paths += [("files", file.path) for file in manifest.files]
    paths += [("secrets", seen_at(secret)) for secret in manifest.secrets]
    for field, path in paths:
        if path.rstrip("/") in seen:
            yield field, path, "a path of its own: something else is already there"
        seen.add(path.rstrip("/"))
    for at, artifact in enumerate(manifest.artifacts):
        if other := next((each for each in sorted(seen) if artifacts.overlap(artifact.to, each)), ""):
            yield f"artifacts[{at}].to", artifact.to, f"a path of its own: {other!r} is there already"


def seen_at(secret: Secret) -> str:
    """Where the container sees a secret."""
    return secret.path or f"/run/secrets/{secret.name}"


def _of_limits(manifest: Manifest) -> Iterator[Mistake]:
    limits = manifest.limits
    # What an engine or systemd makes of larger values is theirs, and earlier versions stored such manifests.
    process = manifest.runtime == "process"
    if limits.memory and limits.memory < 6 * 1024 * 1024:
        yield "limits.memory", limits.memory, "0 (unlimited), or at least 6Mi"
    if process and limits.memory > MOST_MEMORY:
        yield "limits.memory", limits.memory, "0 (unlimited), or at most 2^60 bytes"
    if not 0 <= limits.cpu < math.inf or 0 < limits.cpu < 0.01:
        yield "limits.cpu", limits.cpu, "0 (unlimited), or at least 0.01 cores"
    if process and limits.cpu > MOST_CORES:
        yield "limits.cpu", limits.cpu, f"0 (unlimited), or at most {MOST_CORES} cores"
    if limits.pids < 0:
        yield "limits.pids", limits.pids, "0 (unlimited) or more"
    if process and limits.pids > MOST_PIDS:
        yield "limits.pids", limits.pids, f"0 (unlimited) to {MOST_PIDS}"
    if not 0 <= limits.io_weight <= 10_000:
        yield "limits.io_weight", limits.io_weight, "0 (the system's) to 10000"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


MAX_SECONDS = 1e9
MAX_PORTS_BYTES = Reality.LARGEST * 3 // 4
"""What the ports of a pod take in its reality; the rest is for all else that its agent tells of it (R22)."""
LONGEST_SPLAY = 3600.0
LONGEST_DELAY, LONGEST_COMMAND, LONGEST_USER = 300.0, 60.0, 256
MOST_STEPS, LONGEST_INIT, MOST_RETRIES, LONGEST_AFTER = 16, 86_400.0, 100, 600.0
MOST_SIDECARS = 8
_SIDECAR = re.compile(r"[a-z][a-z0-9-]{0,31}")
LIMITS = frozenset(
    name.removeprefix("RLIMIT_").lower() for name in dir(resource) if name.startswith("RLIMIT_")
)
SIGNALS = frozenset(known.name.removeprefix("SIG") for known in signal.Signals)


def check(manifest: Manifest, source: str, within: str = "") -> None:
    """Check the values; ``within`` is a prefix for the field names in errors, such as ``pod.``.

    Raises:
        InputInvalid: naming the first field that cannot work, what was found and what was expected.
    """
    _check_size(manifest, f"{source}: {within.rstrip('.') or 'manifest'}")
    valid_segment(manifest.id, f"{source}: {within}id")
    _check_ports(manifest, f"{source}: {within}ports")
    for field, found, expected in _mistakes(manifest):
        refuse(f"{source}: {within}{field}", shown(found), expected, field=within + field)


def _check_size(manifest: Manifest, where: str) -> None:
    try:
        size = len(canonical(manifest))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InputInvalid(
            f"{where}: found a value that JSON cannot hold ({error})", field="manifest"
        ) from error
    if size > MAX_MANIFEST_BYTES:
        refuse(where, f"{size} bytes", f"at most {MAX_MANIFEST_BYTES}", field="manifest")


def _check_ports(manifest: Manifest, where: str) -> None:
    for name in manifest.ports:
        valid_name(name, where)
    taken = sum(len(name) + len('"":65535,') for name in manifest.ports)
    if taken > MAX_PORTS_BYTES:
        found = f"{len(manifest.ports)}, which take {taken} bytes of the pod's reality"
        refuse(where, found, f"at most {MAX_PORTS_BYTES} bytes: fewer ports, or shorter names")


def _mistakes(manifest: Manifest) -> Iterator[Mistake]:
    yield from _of_texts(msgspec.to_builtins(manifest), "")
    yield from _of_the_process(manifest)
    yield from mistakes(manifest)
    yield from _of_amounts(manifest)
    yield from _of_times(manifest)
    yield from _of_stages(manifest)
    if manifest.health is not None:
        yield from _of_health(manifest.health, manifest)


def _of_texts(value: object, at: str) -> Iterator[Mistake]:
    """Texts that no call of the system takes, wherever they stand."""
    if isinstance(value, str) and "\0" in value:
        yield at, value, "no NUL character"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            where = f"{at}.{name}".lstrip(".")
            yield from _of_texts(name, where)
            yield from _of_texts(each, where)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _of_texts(each, f"{at}[{number}]")


def _of_the_process(manifest: Manifest) -> Iterator[Mistake]:
    if (not manifest.command and manifest.runtime != "container") or manifest.command[:1] == [""]:
        yield "command", manifest.command, "at least the program to run"
    for name in manifest.env:
        if not name or "=" in name:
            yield "env", name, "a variable name without '='"
    folder = manifest.working_directory
    if folder and (not folder.startswith("/") or ".." in folder.split("/")):
        yield "working_directory", folder, "an absolute path without '..'"
    if manifest.stop.signal.removeprefix("SIG") not in SIGNALS:
        yield "stop.signal", manifest.stop.signal, "the name of a signal, such as TERM or INT"
    if manifest.stop.command[:1] == [""]:
        yield "stop.command", manifest.stop.command, "a program and its arguments"
    if len(manifest.user) > LONGEST_USER:
        yield "user", manifest.user, f"at most {LONGEST_USER} characters"
    if not 0 <= manifest.stop.delay <= LONGEST_DELAY:
        yield "stop.delay", manifest.stop.delay, f"0 to {LONGEST_DELAY:g} seconds"
    if not 0 < manifest.stop.command_timeout <= LONGEST_COMMAND:
        found = manifest.stop.command_timeout
        yield "stop.command_timeout", found, f"more than 0 and at most {LONGEST_COMMAND:g} seconds"


def _of_amounts(manifest: Manifest) -> Iterator[Mistake]:
    for name, port in manifest.ports.items():
        if not 0 <= port.port <= 65535:
            yield f"ports.{name}.port", port.port, "0 (dynamic) to 65535"
    for name, amount in manifest.resources.items():
        if not 0 <= amount < math.inf:
            yield f"resources.{name}", amount, "zero or more, and finite"
    for name, limit in manifest.ulimits.items():
        if name not in LIMITS:
            yield "ulimits", name, f"one of {', '.join(sorted(LIMITS))}"
        if not -1 <= limit < 2**63:
            yield f"ulimits.{name}", limit, "-1 (unlimited) to 2^63 - 1"
    if not 1024 <= manifest.logs.max_bytes < 2**50:
        yield "logs.max_bytes", manifest.logs.max_bytes, "1024 to 2^50"
    if not 0 <= manifest.logs.keep <= 1000:
        yield "logs.keep", manifest.logs.keep, "0 to 1000"
    for found, expected in log_destinations.mistakes(manifest.logs.to):
        yield "logs.to", found, expected


def _of_times(manifest: Manifest) -> Iterator[Mistake]:
    times = {
        "restart.initial": manifest.restart.initial,
        "restart.maximum": manifest.restart.maximum,
        "restart.reset": manifest.restart.reset,
        "stop.grace": manifest.stop.grace,
        "stop_after": manifest.stop_after,
    }
    for name, seconds in times.items():
        if not 0 <= seconds <= MAX_SECONDS:
            yield name, seconds, f"0 to {shown(MAX_SECONDS)} seconds"


def _of_stages(manifest: Manifest) -> Iterator[Mistake]:
    """What cannot work of the commands before and after the workload."""
    stages: dict[str, Sequence[Init | AfterStop]] = {"init": manifest.init, "after_stop": manifest.after_stop}
    for name, steps in stages.items():
        if steps and manifest.runtime == "container" and name != "init":
            yield name, f"{len(steps)}", "nothing: only the runtimes 'process' and 'systemd' have it"
        if len(steps) > MOST_STEPS:
            yield name, f"{len(steps)} commands", f"at most {MOST_STEPS}"
        for at, step in enumerate(steps):
            if not step.command or not step.command[0]:
                yield f"{name}[{at}].command", step.command, "at least the program to run"
    if manifest.init and manifest.runtime == "container" and manifest.stop_after > 0:
        expected = "no commands: a container with stop_after has none"
        yield "init", len(manifest.init), expected
    for at, init in enumerate(manifest.init):
        if not 0 < init.timeout <= LONGEST_INIT:
            yield f"init[{at}].timeout", init.timeout, f"more than 0 and at most {LONGEST_INIT:g} seconds"
        if not 0 <= init.retries <= MOST_RETRIES:
            yield f"init[{at}].retries", init.retries, f"0 to {MOST_RETRIES}"
    for at, after in enumerate(manifest.after_stop):
        if not 0 < after.timeout <= LONGEST_AFTER:
            found = after.timeout
            yield f"after_stop[{at}].timeout", found, f"more than 0 and at most {LONGEST_AFTER:g} seconds"
    if (lasts := sum(each.timeout for each in manifest.after_stop)) > LONGEST_AFTER:
        yield "after_stop", f"{lasts:g} s in all", f"at most {LONGEST_AFTER:g} s in all"
    yield from _of_sidecars(manifest)


def _of_sidecars(manifest: Manifest) -> Iterator[Mistake]:
    if manifest.sidecars and manifest.runtime == "container":
        found = f"{len(manifest.sidecars)}"
        yield "sidecars", found, "nothing: only the runtimes 'process' and 'systemd' have it"
    if len(manifest.sidecars) > MOST_SIDECARS:
        yield "sidecars", f"{len(manifest.sidecars)} programs", f"at most {MOST_SIDECARS}"
    names = [each.name for each in manifest.sidecars]
    for at, each in enumerate(manifest.sidecars):
        if not _SIDECAR.fullmatch(each.name) or each.name == MAIN:
            expected = f"1 to 32 of a-z, 0-9 and '-', from a letter, and not {MAIN!r}"
            yield f"sidecars[{at}].name", each.name, expected
        if names.index(each.name) != at:
            yield f"sidecars[{at}].name", each.name, "a name of its own"
        if not each.command or not each.command[0]:
            yield f"sidecars[{at}].command", each.command, "at least the program to run"


def _of_health(health: HealthCheck, manifest: Manifest) -> Iterator[Mistake]:
    if health.type == "command" and not health.command:
        yield "health.command", health.command, "the program to run"
    if health.type != "command" and health.port not in manifest.ports:
        known = ", ".join(manifest.ports) or "it has none"
        yield "health.port", health.port, f"one of the pod's ports ({known})"
    if health.type == "http" and (
        not health.path.startswith("/") or any(c in health.path for c in " \r\n\0")
    ):
        yield "health.path", health.path, "a path that starts with '/' and has no white space"
    for name, seconds in (("interval", health.interval), ("timeout", health.timeout)):
        if not 0 < seconds <= MAX_SECONDS:
            yield f"health.{name}", seconds, f"more than 0 and at most {shown(MAX_SECONDS)} seconds"
    for name, seconds in (("start_period", health.start_period), ("restart_after", health.restart_after)):
        if not 0 <= seconds <= MAX_SECONDS:
            yield f"health.{name}", seconds, f"0 to {shown(MAX_SECONDS)} seconds"
    if health.restart_after > 0 and manifest.restart.policy == "never":
        yield "health.restart_after", health.restart_after, "0, because restart.policy is never"
    for name, times in (("passes", health.passes), ("failures", health.failures)):
        if times < 1:
            yield f"health.{name}", times, "1 or more"
