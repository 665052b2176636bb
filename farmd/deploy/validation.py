"""What a service's spec cannot say, although its types are right: one line, in the order of uncloud's checks.

A port that is published without ``@host`` would be uncloud's ingress, which this house leaves to a proxy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from farmd.deploy import port_spec
from farmd.deploy.model import LOG_DRIVER, FileMount, PortSpec, ServiceSpec, VolumeOptions, VolumeSpec
from store import images
from store.errors import InputInvalid, refuse
from store.keys import valid_name
from store.mistakes import shown

MAX_ID = 2**31 - 1
MAX_REPLICAS = 100_000

Mistake = tuple[str, object, str]
"""(field, found, expected)."""


def validate(spec: ServiceSpec) -> None:
    """Check one service.

    Raises:
        InputInvalid: the first field that cannot be, what was found and what was expected.
    """
    where = f"services.{spec.name}" if spec.name else "service"
    images.parse(spec.container.image, f"{where}: image")
    for field, found, expected in _mounts(spec):
        _refuse(where, field, found, expected)
    if spec.name:
        valid_name(spec.name, f"{where}: name")
    checks = (_count(spec), _log(spec), _ports(spec.ports), _volumes(spec), _files(spec), _hook(spec))
    for field, found, expected in (mistake for check in checks for mistake in check):
        _refuse(where, field, found, expected)


def _refuse(where: str, field: str, found: object, expected: str) -> None:
    refuse(f"{where}: {field}", shown(found), expected, field=field)


def _log(spec: ServiceSpec) -> Iterator[Mistake]:
    """The agent keeps the output, so the engine's other drivers have no say."""
    if (log := spec.container.log) is None:
        return
    if log.name != LOG_DRIVER:
        yield "log.name", log.name, f"{LOG_DRIVER}: the agent keeps the output"
    for name, value in log.options.items():
        if name not in ("max-size", "max-file") or not (
            value.isascii() and value.isdigit() and int(value) > 0
        ):
            yield f"log.options.{name}", value, "max-size in bytes, and max-file, as numbers above 0"


def _count(spec: ServiceSpec) -> Iterator[Mistake]:
    if not 0 <= spec.replicas <= MAX_REPLICAS:
        yield "replicas", spec.replicas, f"0 to {MAX_REPLICAS}"
    if spec.placement.max_per_node < 0:
        yield "placement.max_per_node", spec.placement.max_per_node, "0 (no limit) or more"


def _mounts(spec: ServiceSpec) -> Iterator[Mistake]:
    for mount in spec.container.mounts:
        if not mount.volume:
            yield "mounts", mount.volume, "the name of a volume"
        if not _absolute(mount.path):
            yield "mounts", mount.path, "an absolute path without '..'"


def _ports(ports: Collection[PortSpec]) -> Iterator[Mistake]:
    for port in ports:
        try:
            port_spec.validate(port)
        except InputInvalid as error:
            yield "ports", port_spec.text(port), f"a port that can be ({error.message})"
        if port.protocol not in ("tcp", "udp") or port.hostname:
            yield "ports", port_spec.text(port), "tcp or udp: a proxy serves http and https under host names"
        if port.mode == "ingress" and port.published:
            yield "ports", port_spec.text(port), f"{port.published}:{port.container}@host, on each machine"
        if port.host_prefix:
            yield "ports", port_spec.text(port), "one address, such as 127.0.0.1: a network is not supported"
    for place, port in enumerate(ports := list(ports)):
        if port_spec.conflicting([port], ports[:place]):
            yield "ports", port_spec.text(port), "each published port once"


def _volumes(spec: ServiceSpec) -> Iterator[Mistake]:
    names: set[str] = set()
    known: dict[str, tuple[object, object]] = {}
    for volume in spec.volumes:
        yield from _volume(volume)
        if volume.name in names:
            yield "volumes", volume.name, "each name once"
        names.add(volume.name)
        options = volume.volume or VolumeOptions()
        described = options.driver, options.labels
        if volume.volume_name and known.setdefault(volume.volume_name, described) != described:
            yield f"volumes.{volume.name}", volume.volume_name, "one driver and the same labels for a volume"
    for mount in spec.container.mounts:
        if mount.volume not in names:
            yield (
                "mounts",
                mount.volume,
                f"one of the service's volumes ({', '.join(sorted(names)) or 'none'})",
            )


def _volume(volume: VolumeSpec) -> Iterator[Mistake]:
    if not volume.name:
        yield "volumes", volume.name, "a name"
    if volume.type == "volume":
        try:
            valid_name(volume.volume_name.replace("_", "-").replace(".", "-").lower())
        except InputInvalid:
            yield (
                "volumes",
                volume.volume_name,
                "1 to 63 of letters, digits, '_', '.' and '-', not at the ends",
            )
    if volume.type == "bind" and (volume.bind is None or not _absolute(volume.bind.host_path)):
        yield (
            f"volumes.{volume.name}",
            volume.bind and volume.bind.host_path,
            "an absolute path of the machine",
        )


def _files(spec: ServiceSpec) -> Iterator[Mistake]:
    names = [config.name for config in spec.configs]
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            yield "configs", name, "a name, each once"
    for mount in spec.container.configs:
        if mount.name not in names:
            yield "configs", mount.name, f"one of the service's configs ({', '.join(names) or 'none'})"
        yield from _owner("configs", mount)
    for mount in spec.container.secrets:
        if not mount.name or "/" in mount.name or mount.name.startswith("."):
            yield "secrets", mount.name, "the name of a file in the machine's folder of secrets"
        yield from _owner("secrets", mount)


def _owner(field: str, mount: FileMount) -> Iterator[Mistake]:
    if mount.path and not _absolute(mount.path):
        yield field, mount.path, "an absolute path without '..'"
    for number in (mount.uid, mount.gid):
        if number and not (number.isascii() and number.isdigit() and int(number[:20]) <= MAX_ID):
            yield field, number, "a user or group as a number"


def _hook(spec: ServiceSpec) -> Iterator[Mistake]:
    if spec.pre_deploy is not None and not spec.pre_deploy.command:
        yield "pre_deploy.command", spec.pre_deploy.command, "the program to run"


def _absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path
