"""What a service should be, in the words of people's files: plain values, each with a default.

A ``ServiceSpec`` is what a compose file and a file of the house both become. ``farmd.deploy.manifest`` turns
it into a pod's manifest and back; ``farmd.deploy.spec_diff`` says whether a running pod still fits it. The
fields are those of uncloud's ``ServiceSpec``; amounts are cores and bytes, times are seconds.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection
from typing import Annotated, Literal, NoReturn

import msgspec

from store import manifests
from store.containers import Device, DeviceReservation, Ulimit
from store.errors import InputInvalid, refuse
from store.manifests import HealthCheck, Restart, Stop
from store.quantities import Amount, Seconds, Whole
from store.secrets import Sealed
from store.services import Catalog, Hook, Mode, UpdateConfig

PullPolicy = Literal["always", "missing", "never"]

Propagation = Literal["", "private", "rprivate", "shared", "rshared", "slave", "rslave"]

LOG_DRIVER = "local"


class ContainerSpecStatus(enum.StrEnum):
    """What a running pod needs so that it fits a spec."""

    UP_TO_DATE = "up-to-date"
    NEEDS_UPDATE = "needs-update"
    NEEDS_RECREATE = "needs-recreate"


class PortSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A port of the container. ``host`` ports are published on each machine under ``published``.

    Published 0: one of the agent's ports. ``host_ip`` limits a published port to one address of the machine,
    ``host_prefix`` to its addresses inside a network. ``hostname``: for http and https alone.
    ``farmd.deploy.spec`` reads and writes the short text.
    """

    container: int
    published: int = 0
    protocol: str = "tcp"
    mode: str = "ingress"
    hostname: str = ""
    host_ip: str = ""
    host_prefix: str = ""


class VolumeDriver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The driver that stores a volume; an empty name is ``local``."""

    name: str = ""
    options: dict[str, str] = {}


class VolumeOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A named volume. Empty ``name``: that of its spec. Without a driver any existing volume fits."""

    name: str = ""
    driver: VolumeDriver | None = None
    labels: dict[str, str] = {}
    no_copy: bool = False
    subpath: str = ""


class BindOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A folder or file of the machine."""

    host_path: str
    create_host_path: bool = False
    propagation: Propagation = ""


class TmpfsOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file system in memory; ``size`` 0: as large as the engine allows; ``options`` as for ``mount``."""

    size: Whole = 0
    mode: int = 0
    options: list[str] = []


class VolumeSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that containers mount; ``name`` is only what the mounts of this service call it."""

    name: str
    type: Literal["volume", "bind", "tmpfs"] = "volume"
    volume: VolumeOptions | None = None
    bind: BindOptions | None = None
    tmpfs: TmpfsOptions | None = None

    @property
    def volume_name(self) -> str:
        """The volume's name on the machines; empty for what is no named volume."""
        if self.type != "volume":
            return ""
        return (self.volume.name if self.volume is not None else "") or self.name


class VolumeMount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a container sees a volume of its service."""

    volume: str
    path: str
    read_only: bool = False


class ConfigSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file that travels with the service; ``encoding`` is that of a content that is no text. With ``kv``
    the content is the value of this config key, which ``farmctl deploy`` reads.
    """

    name: str
    content: str = ""
    encoding: Literal["", "base64"] = ""
    kv: str = ""


class FileMount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a container sees a config, or a secret of the machine's; an empty ``path``: ``/<name>``
    (of a secret: ``/run/secrets/<name>``). Empty owners: root. ``secret`` refers to a sealed secret.
    """

    name: str = ""
    path: str = ""
    uid: str = ""
    gid: str = ""
    mode: int = 0o444
    secret: str = ""


class Resources(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Limits (0: none), and what is reserved on the machine for the scheduler."""

    cpu: Amount = 0.0
    memory: Whole = 0
    pids: int = 0
    shared_memory: Whole = 0
    cpu_reservation: Amount = 0.0
    memory_reservation: Whole = 0
    devices: list[Device] = []
    device_reservations: list[DeviceReservation] = []
    ulimits: dict[str, Ulimit] = {}


class LogDriver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The driver that keeps the container's output; ``to``: where it goes besides, as in ``logs.to``."""

    name: str = LOG_DRIVER
    options: dict[str, str] = {}
    to: list[str] = []


class ContainerSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The container of a service. None means that the image or the engine decides."""

    image: str
    command: list[str] = []
    entrypoint: list[str] = []
    env: dict[str, str] = {}
    user: str = ""
    groups: list[str] = []
    working_directory: str = ""
    hostname: str = ""
    platform: str = ""
    labels: dict[str, str] = {}
    pull: PullPolicy = "missing"
    init: bool | None = None
    privileged: bool = False
    pid: Literal["", "host"] = ""
    read_only: bool = False
    network: Literal["", "host", "none"] = ""
    networks: dict[str, list[str]] = {}
    internal: list[str] = []
    dns: list[str] = []
    dns_search: list[str] = []
    dns_options: list[str] = []
    hosts: dict[str, str] = {}
    cap_add: list[str] = []
    cap_drop: list[str] = []
    sysctls: dict[str, str] = {}
    security_options: list[str] = []
    log: LogDriver | None = None
    health: HealthCheck | None = None
    restart: Restart = Restart()
    stop: Stop = Stop()
    mounts: list[VolumeMount] = []
    configs: list[FileMount] = []
    secrets: list[FileMount] = []
    sealed: dict[str, Sealed] = {}
    resources: Resources = Resources()


class Placement(manifests.Placement, frozen=True, omit_defaults=True, kw_only=True):
    """Which machines a service may use: names, or none for all; ``max_per_node`` 0: no limit."""

    machines: list[str] = msgspec.field(default_factory=list)
    max_per_node: int = 0


class ServiceSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A service. ``replicas`` does not count for a global one, which has a pod on each machine.

    ``labels`` are the service's own, those of its pods stand in ``container``. Empty ``on_lost``: the plan
    says whether pods on a lost machine are replaced (``farmd.deploy.project``). ``catalog``: how it is
    found in Consul's catalogue; None: it is not there.
    """

    container: ContainerSpec
    name: str = ""
    labels: dict[str, str] = {}
    mode: Mode = "replicated"
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    placement: Placement = Placement()
    ports: list[PortSpec] = []
    volumes: list[VolumeSpec] = []
    configs: list[ConfigSpec] = []
    update: UpdateConfig = UpdateConfig()
    pre_deploy: Hook | None = None
    on_lost: Literal["", "replace", "wait"] = ""
    unhealthy_after: Seconds = 300.0
    catalog: Catalog | None = None

    def mounted(self) -> list[VolumeSpec]:
        """The named volumes that its container mounts, in the order of their names on the machines."""
        if not self.container.mounts:
            return []
        used = {mount.volume for mount in self.container.mounts}
        found = [each for each in self.volumes if each.name in used and each.type == "volume"]
        return sorted(found, key=lambda each: each.volume_name)


# Ports as text: ``[hostname:][published:]container[/protocol]`` and ``[address:]published:container@host``.
#
# The text is uncloud's (``pkg/api/port.go``), and stands in ``x-ports`` and in flags. Whether a service may
# have such a port is another question (``farmd.deploy.resolver``).

PROTOCOLS = ("tcp", "udp", "http", "https")
MODES = ("ingress", "host")


def parse(text: str) -> PortSpec:
    """Read one port.

    Raises:
        InputInvalid: naming what was found and what was expected.
    """
    rest, mode = _mode(text)
    rest, protocol = _protocol(rest)
    *before, last = _parts(rest)
    hostname = address = ""
    published = 0
    if before and _number(before[-1]) is not None:
        published = _number(before.pop()) or 0
    elif len(before) == 1 and mode == "ingress" and not before[0].lstrip("-").isdigit():
        hostname = before.pop()
    elif before:
        _refuse("published port", before[-1], "1 to 65535")
    if before:
        address = before[0]
    if mode == "ingress" and address:
        hostname, address = address, ""
    container = _number(last)
    if container is None:
        _refuse("container port", last, "1 to 65535")
    prefix = address if "/" in address else ""
    port = PortSpec(
        container=container,
        published=published,
        protocol=protocol or ("https" if hostname else "tcp"),
        mode=mode,
        hostname=hostname,
        host_ip="" if prefix else address,
        host_prefix=prefix,
    )
    validate(port)
    return port


def validate(port: PortSpec) -> None:
    """Check one port by itself.

    Raises:
        InputInvalid: naming the part that cannot be.
    """
    if not 0 < port.container <= 65535:
        _refuse("container port", port.container, "1 to 65535")
    if not 0 <= port.published <= 65535:
        _refuse("published port", port.published, "1 to 65535")
    if port.protocol not in PROTOCOLS:
        _refuse("protocol", port.protocol, f"one of {', '.join(PROTOCOLS)}")
    if port.mode == "ingress":
        _validate_ingress(port)
    elif port.mode == "host":
        _validate_host(port)
    else:
        _refuse("mode", port.mode, f"one of {', '.join(MODES)}")


def _validate_ingress(port: PortSpec) -> None:
    if port.host_ip or port.host_prefix:
        _refuse("host address", port.host_ip or port.host_prefix, "none without @host")
    if port.hostname and port.protocol not in ("http", "https"):
        _refuse("hostname", port.hostname, f"none for {port.protocol}")
    if port.hostname and not _is_hostname(port.hostname):
        _refuse("hostname", port.hostname, "a name with a dot")


def _validate_host(port: PortSpec) -> None:
    if port.hostname:
        _refuse("hostname", port.hostname, "none with @host")
    if not port.published:
        _refuse("published port", 0, "1 to 65535 with @host")
    if port.protocol not in ("tcp", "udp"):
        _refuse("protocol", port.protocol, "tcp or udp with @host")
    if port.host_ip and port.host_prefix:
        _refuse("host address", port.host_prefix, "an address or a network, not both")
    try:
        if port.host_ip:
            ipaddress.ip_address(port.host_ip)
        if port.host_prefix:
            ipaddress.ip_interface(port.host_prefix)
    except ValueError:
        _refuse("host address", port.host_ip or port.host_prefix, "an IP address or network")


def text(port: PortSpec) -> str:
    """The canonical text: ``parse(text(port)) == port``."""
    parts = [port.hostname, _bracketed(port.host_ip or port.host_prefix), str(port.published or "")]
    head = ":".join([*filter(None, parts), str(port.container)])
    return f"{head}/{port.protocol}{'@host' if port.mode == 'host' else ''}"


def conflicts(one: PortSpec, other: PortSpec) -> bool:
    """Whether no machine can have both. A port for a network counts as one for all addresses."""
    if not (one.mode == other.mode == "host"):
        return False
    if one.published != other.published or one.protocol != other.protocol:
        return False
    return not one.host_ip or not other.host_ip or one.host_ip == other.host_ip


def conflicting(ports: Collection[PortSpec], others: Collection[PortSpec]) -> list[PortSpec]:
    """The ports that exclude one of the ``others``."""
    return [port for port in ports if any(conflicts(port, other) for other in others)]


def equal(ports: Collection[PortSpec], others: Collection[PortSpec]) -> bool:
    """Whether both are the same ports, in any order; ports that cannot be are equal to none."""
    try:
        for port in (*ports, *others):
            validate(port)
    except InputInvalid:
        return False
    return sorted(map(text, ports)) == sorted(map(text, others))


def _mode(given: str) -> tuple[str, str]:
    rest, sign, mode = given.partition("@")
    if sign and mode != "host":
        _refuse("mode", mode, "'host' behind the '@'")
    return rest, "host" if sign else "ingress"


def _protocol(given: str) -> tuple[str, str]:
    """The part behind the last slash, unless that slash is the one of a network."""
    rest, slash, protocol = given.rpartition("/")
    if not slash or ":" in protocol:
        return given, ""
    if protocol not in PROTOCOLS:
        _refuse("protocol", protocol, f"one of {', '.join(PROTOCOLS)}")
    return rest, protocol


def _parts(given: str) -> list[str]:
    """At most three parts: address or hostname, published port, container port."""
    if not given.startswith("["):
        parts = given.split(":")
        if len(parts) > 3:
            _refuse("host address", ":".join(parts[:-2]), "an IPv6 address in brackets")
        return parts
    address, bracket, rest = given[1:].partition("]")
    bits, _, ports = rest.partition(":")
    if not bracket or (bits and not bits.startswith("/")):
        _refuse("host address", given, "an IPv6 address in brackets, such as [::1]:80:8080@host")
    return [address + bits, *ports.split(":")][:4]


def _number(part: str) -> int | None:
    return int(part) if part.isascii() and part.isdigit() and int(part[:6]) <= 65535 else None


def _is_hostname(name: str) -> bool:
    return "." in name.strip(".") and not set(name) & set("/:[]@ \t")


def _bracketed(address: str) -> str:
    if ":" not in address:
        return address
    ip, slash, bits = address.partition("/")
    return f"[{ip}]{slash}{bits}"


def _refuse(what: str, found: object, expected: str) -> NoReturn:
    refuse(what, repr(found), expected)
