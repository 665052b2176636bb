"""The section of a node agent (see ``farmd.config.sections``)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import field

from farmd.config.fields import Section, key, this_host
from store.features import ALLOWABLE, PROCESSES
from store.keys import valid_segment
from store.selectors import valid_labels

DENIED = (
    "consul",
    "farmd",
    "messagebus",
    "polkitd",
    "sshd",
    "systemd-*",
    "@root",
    "@disk",
    "@docker",
    "@incus-admin",
    "@kmem",
    "@lxd",
    "@shadow",
)
"""Users who own what the node's other services hold, a farm's token among that, and groups whose members are
as good as root.
"""


def _node(value: str) -> None:
    valid_segment(value, "node")


def _labels(value: dict[str, str]) -> None:
    valid_labels(value, "labels")


def _engine(value: str) -> None:
    if value and not re.fullmatch(r"unix:///[^\0]+|https?://[^\s/]+/?", value):
        raise ValueError("expected unix:///PATH, http://HOST:PORT or https://HOST:PORT")


def _systemd(value: str) -> None:
    if value and not re.fullmatch(r"unix:path=/[^\0;,]+", value):
        raise ValueError("expected unix:path=/PATH, as unix:path=/run/dbus/system_bus_socket")


def _absolute(value: str) -> None:
    if value and not value.startswith("/"):
        raise ValueError("expected an absolute path")


def _state_dir(value: str) -> None:
    if not value.startswith("/"):
        raise ValueError("expected an absolute path, because processes with other folders use it")


def _allow(value: list[str]) -> None:
    for each in value:
        if each not in ALLOWABLE and (not each.startswith("/") or ".." in each.split("/")):
            raise ValueError(f"found {each!r}, expected {', '.join(ALLOWABLE)} or an absolute path")


def _range(value: str) -> None:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    if found is None or not 1024 <= int(found[1]) <= int(found[2]) <= 65535:
        raise ValueError("expected FIRST-LAST with 1024 <= FIRST <= LAST <= 65535")


class AgentSection(Section, frozen=True):
    """A node agent: `farmd agent`."""

    node: Annotated[
        str,
        key(
            "Name of this node, unique among live agents.",
            check=_node,
        ),
    ] = field(default_factory=this_host)
    state_dir: Annotated[
        str,
        key(
            "Folder for workloads, logs and the session's id.",
            form="an absolute path",
            check=_state_dir,
        ),
    ] = "/var/lib/farmd-agent"
    labels: Annotated[
        dict[str, str],
        key(
            "Facts about this node; labels set by people win.",
            check=_labels,
        ),
    ] = field(default_factory=dict)
    port_range: Annotated[
        str,
        key(
            "Range that dynamic ports of pods come from.",
            form="FIRST-LAST with 1024 <= FIRST <= LAST <= 65535",
            check=_range,
        ),
    ] = "20000-29999"
    stop_workloads_on_exit: Annotated[bool, key("Stop all pods when the agent stops (for trials).")] = False
    ttl: Annotated[float, key("Time to live of the session, in seconds.", ge=10, le=60)] = 15.0
    engine: Annotated[
        str,
        key(
            "Docker-compatible API for containers; empty: this node runs none.",
            form="unix:///PATH, or http(s)://HOST:PORT",
            check=_engine,
        ),
    ] = ""
    systemd: Annotated[
        str,
        key(
            "D-Bus address of the systemd that runs units; empty: this node runs none.",
            form="unix:path=/PATH, as unix:path=/run/dbus/system_bus_socket",
            check=_systemd,
        ),
    ] = ""
    registry_auth: Annotated[
        str,
        key(
            "File with credentials of registries, as `~/.docker/config.json`; read at each pull.",
            check=_absolute,
        ),
    ] = ""
    image_retention: Annotated[
        float,
        key("How long an image that the agent pulled stays once no pod needs it; 0: for ever.", ge=0),
    ] = 604_800.0
    secrets_dir: Annotated[
        str, key("Folder with the files that `secrets` in manifests name.", check=_absolute)
    ] = "/etc/farmd/secrets"
    allow: Annotated[
        list[str],
        key(
            "What workloads may be and have on this node; a folder allows binds below it.",
            form=f"a list of {', '.join(ALLOWABLE)} and absolute paths",
            check=_allow,
        ),
    ] = field(default_factory=lambda: [PROCESSES])
    user: Annotated[
        str,
        key(
            "User that processes and units run as whose manifests name none; empty: `farmd-pods` where the"
            " agent is root, else nobody, unless `agent.share_user` is true.",
        ),
    ] = ""
    share_user: Annotated[
        bool,
        key(
            "Run processes and units as the agent's own user, who can read its credentials and state; for one"
            " machine and for trials.",
        ),
    ] = False
    deny_users: Annotated[
        list[str],
        key(
            "Users that no process and no unit runs as; `*` is any text, `@NAME` are the members of a group.",
            form="a list of names, patterns and @GROUP",
        ),
    ] = field(default_factory=lambda: list(DENIED))

    signatures: Annotated[
        Literal["none", "warn", "enforce"],
        key("What a pod needs to start: nothing, a signature or else it gets a warning, a signature."),
    ] = "none"
    trust: Annotated[
        str,
        key(
            "File of the keys that the node trusts: lines `name key owners nodes`; read at each decision.",
            check=_absolute,
        ),
    ] = "/etc/farmd/trust"

    def ports(self) -> tuple[int, int]:
        """First and last port of the range."""
        first, _, last = self.port_range.partition("-")
        return int(first), int(last)
