"""What a service should be, in the words of people's files: plain values, each with a default.

A ``ServiceSpec`` is what a compose file and a file of the house both become. ``farmd.deploy.manifest`` turns
it into a pod's manifest and back; ``farmd.deploy.plan`` says whether a running pod still fits it. The fields
are those of uncloud's ``ServiceSpec``; amounts are cores and bytes, times are seconds.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec

from store import manifests
from store.containers import Device, DeviceReservation, Ulimit
from store.manifests import HealthCheck, Restart, Stop
from store.quantities import Amount, Seconds, Whole
from store.services import Hook, Mode, UpdateConfig

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
    ``farmd.deploy.port_spec`` reads and writes the short text.
    """

    container: int
    published: int = 0
    protocol: str = "tcp"
    mode: str = "ingress"
    hostname: str = ""
    host_ip: str = ""
    host_prefix: str = ""


class VolumeDriver(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who stores a volume; an empty name is ``local``."""

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
    """A file that travels with the service; ``encoding`` is that of a content that is no text."""

    name: str
    content: str = ""
    encoding: Literal["", "base64"] = ""


class FileMount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a container sees a config, or a secret of the machine's; an empty ``path``: ``/<name>``
    (of a secret: ``/run/secrets/<name>``). Empty owners: root."""

    name: str
    path: str = ""
    uid: str = ""
    gid: str = ""
    mode: int = 0o444


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
    """Who keeps the container's output."""

    name: str = LOG_DRIVER
    options: dict[str, str] = {}


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
    resources: Resources = Resources()


class Placement(manifests.Placement, frozen=True, omit_defaults=True, kw_only=True):
    """Which machines a service may use: names, or none for all; ``max_per_node`` 0: no limit."""

    machines: list[str] = msgspec.field(default_factory=list)
    max_per_node: int = 0


class ServiceSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A service. ``replicas`` does not count for a global one, which has a pod on each machine.

    ``labels`` are the service's own, those of its pods stand in ``container``. Empty ``on_lost``: the plan
    says whether pods on a lost machine are replaced (``farmd.deploy.project``).
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

    def mounted(self) -> list[VolumeSpec]:
        """The named volumes that its container mounts, in the order of their names on the machines."""
        if not self.container.mounts:
            return []
        used = {mount.volume for mount in self.container.mounts}
        found = [each for each in self.volumes if each.name in used and each.type == "volume"]
        return sorted(found, key=lambda each: each.volume_name)
