"""The parts of a manifest that only containers have. Names and units are those of the rest of a manifest.

None, an empty text, an empty list or 0 means that the image or the engine decides.
"""

from __future__ import annotations

import base64
from typing import Literal

import msgspec

from store.quantities import Amount, Seconds, Whole


class Device(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A device of the node; an empty ``container`` is the same path."""

    host: str
    container: str = ""
    permissions: str = "rwm"


class DeviceReservation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Devices that a driver of the engine hands out, such as GPUs; ``count`` -1: all."""

    driver: str = ""
    count: int = 0
    device_ids: list[str] = []
    capabilities: list[list[str]] = []
    options: dict[str, str] = {}


class Ulimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit of the container's processes; -1 is unlimited."""

    soft: int
    hard: int


class Container(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the engine makes the container. The manifest's ``command`` and ``args`` are the image's command.

    ``pull``: ``missing`` pulls an image that the node does not have, ``always`` asks the registry before each
    new manifest (an image with a digest never changes, so not for that one). ``network``: empty for the
    engine's own network, ``host`` or ``none``; ``networks`` maps names of bridge networks, which the agent
    makes where they are missing, to the container's names in them. ``internal`` names those of them that
    lead nowhere else. ``shared_memory`` is in bytes.
    """

    image: str
    pull: Literal["missing", "always", "never"] = "missing"
    platform: str = ""
    entrypoint: list[str] = []
    init: bool | None = None
    hostname: str = ""
    groups: list[str] = []
    labels: dict[str, str] = {}
    read_only: bool = False
    privileged: bool = False
    pid: Literal["", "host"] = ""
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
    shared_memory: Whole = 0
    devices: list[Device] = []
    device_reservations: list[DeviceReservation] = []
    ulimits: dict[str, Ulimit] = {}


class Mount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the container sees under the path ``target``.

    ``source`` is a folder or file of the node (``bind``; ``create`` makes a missing folder), the name of a
    volume, or nothing (``tmpfs``, a file system in memory of at most ``size`` bytes). ``options`` are
    those of ``mount(8)`` for a ``tmpfs``, such as ``exec``.
    """

    type: Literal["bind", "volume", "tmpfs"] = "volume"
    source: str = ""
    target: str
    read_only: bool = False
    create: bool = False
    propagation: Literal["", "private", "rprivate", "shared", "rshared", "slave", "rslave"] = ""
    no_copy: bool = False
    subpath: str = ""
    size: Whole = 0
    mode: int = 0
    options: list[str] = []


class Volume(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a volume is made where the node has none of that name."""

    driver: str = "local"
    options: dict[str, str] = {}
    labels: dict[str, str] = {}


class OnChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the agent does after it rendered a template with another result, while the pod runs."""

    do: Literal["nothing", "signal", "command", "restart"] = "nothing"
    signal: str = "HUP"
    command: list[str] = []


class File(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file with this content, which the container sees under ``path`` and cannot change; with ``encoding``
    the content is encoded so, because it is no text. A process finds it in the folder ``FARMD_FILES``.

    With ``template`` the agent renders the content (R45), and does ``on_change`` when it renders another one
    later, at a random moment within ``splay`` seconds.
    """

    path: str
    content: str = ""
    template: str = ""
    on_change: OnChange = OnChange()
    splay: Seconds = 0.0
    uid: int = 0
    gid: int = 0
    mode: int = 0o444
    encoding: Literal["", "base64"] = ""

    @property
    def body(self) -> bytes:
        """The content as bytes.

        Raises:
            ValueError: it is not encoded as it says.
        """
        return base64.b64decode(self.content, validate=True) if self.encoding else self.content.encode()


class Secret(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file of the node's ``agent.secrets_dir``, or with ``secret`` one of the manifest's ``sealed``.

    An empty ``path`` is ``/run/secrets/<name>``. A process has no ``path``: its sealed secrets lie in the
    folder that ``FARMD_SECRETS`` names.
    """

    name: str
    path: str = ""
    uid: int = 0
    gid: int = 0
    mode: int = 0o444
    secret: str = ""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the workload may use at most: bytes of memory, cores, processes and threads; 0 is unlimited.

    ``io_weight`` (1 to 10000, 0: the system's, 100) is its share of a busy disk beside other workloads.
    """

    memory: Whole = 0
    cpu: Amount = 0.0
    pids: int = 0
    io_weight: int = 0
