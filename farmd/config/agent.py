"""The section of a node agent (see ``farmd.config.sections``)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import field

from farmd.config.fields import Section, key, this_host
from store import log_destinations
from store.artifacts import source_mistake
from store.credentials import told
from store.features import ALLOWABLE, NETWORK, PROCESSES
from store.keys import valid_segment
from store.nodes import is_volume_name
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


def _registries(value: dict[str, str]) -> None:
    for name, base in value.items():
        if why := source_mistake(f"registry://{name}/any"):
            raise ValueError(f"found the name {name!r}, expected {why}")
        if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", base):
            found, expected = told(base), "http(s)://HOST/PATH without user and query"
            raise ValueError(f"{name}: found {found!r}, expected {expected}")


def _proxy(value: str) -> None:
    if value and not re.fullmatch(r"https?://[^\s/]+/?", value):
        raise ValueError("expected http(s)://HOST:PORT")


def _absolute(value: str) -> None:
    if value and not value.startswith("/"):
        raise ValueError("expected an absolute path")


def _cgroup(value: str) -> None:
    folder = re.fullmatch(r"/sys/fs/cgroup(/[a-zA-Z0-9_@:-][a-zA-Z0-9_.@:-]*)+", value)
    if value not in ("auto", "none") and folder is None:
        raise ValueError("expected auto, none, or a folder below /sys/fs/cgroup")


def _all_absolute(value: list[str]) -> None:
    for each in value:
        _absolute(each or "-")


def _state_dir(value: str) -> None:
    if not value.startswith("/"):
        raise ValueError("expected an absolute path, because processes in other folders use it")


def _log_to(value: list[str]) -> None:
    for found, expected in log_destinations.mistakes(value):
        raise ValueError(f"found {found!r}, expected {expected}")


def _allow(value: list[str]) -> None:
    for each in value:
        folder = each.startswith("/") and ".." not in each.split("/")
        network = each.startswith(NETWORK) and is_volume_name(each.removeprefix(NETWORK))
        if not (each in ALLOWABLE or folder or network):
            expected = f"{', '.join(ALLOWABLE)}, {NETWORK}NAME or an absolute path"
            raise ValueError(f"found {each!r}, expected {expected}")


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
            "Labels of this node; a label set with farmctl takes precedence.",
            check=_labels,
        ),
    ] = field(default_factory=dict)
    port_range: Annotated[
        str,
        key(
            "Range of the dynamic ports of pods.",
            form="FIRST-LAST with 1024 <= FIRST <= LAST <= 65535",
            check=_range,
        ),
    ] = "20000-29999"
    stop_workloads_on_exit: Annotated[bool, key("Stop all pods when the agent stops (for tests).")] = False
    ttl: Annotated[float, key("Time to live of the session, in seconds.", ge=10, le=60)] = 15.0
    engine: Annotated[
        str,
        key(
            "Docker-compatible API for containers; empty: no containers on this node.",
            form="unix:///PATH, or http(s)://HOST:PORT",
            check=_engine,
        ),
    ] = ""
    systemd: Annotated[
        str,
        key(
            "D-Bus address of the systemd that runs units; empty: no units on this node.",
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
    artifact_max: Annotated[
        int, key("The size in bytes up to which the agent fetches an artifact.", ge=1)
    ] = 2 << 30
    artifact_max_unpacked: Annotated[
        int, key("The size in bytes up to which the agent unpacks an archive.", ge=1)
    ] = 8 << 30
    artifact_timeout: Annotated[
        float, key("How long the agent tries to fetch and unpack one artifact, before the pod waits.", gt=0)
    ] = 3600.0
    artifact_retention: Annotated[
        float, key("How long an artifact stays on the node once no pod needs it; 0: for ever.", ge=0)
    ] = 604_800.0
    artifact_hosts: Annotated[
        list[str], key("Hosts from which artifacts may come; empty: all.", form="a list of host names")
    ] = field(default_factory=list)
    artifact_registries: Annotated[
        dict[str, str],
        key(
            "Where the sources `registry://NAME/PATH` lead on this node.",
            form="a table of names, and addresses such as https://artifacts.example/builds",
            check=_registries,
        ),
    ] = field(default_factory=dict)
    artifact_auth: Annotated[
        str,
        key(
            "File with the node's credentials for servers of artifacts; only the agent's user may read it.",
            check=_absolute,
        ),
    ] = ""
    artifact_ca: Annotated[
        str, key("File of the authorities of those servers; empty: the machine's.", check=_absolute)
    ] = ""
    artifact_proxy: Annotated[
        str,
        key(
            "HTTP proxy for artifacts; empty: none. Variables of the environment are not read.",
            form="http(s)://HOST:PORT",
            check=_proxy,
        ),
    ] = ""
    farm_ca: Annotated[
        str,
        key(
            "File of the authorities of farms' certificates, which `service()` in templates asks; empty: the"
            " machine's.",
            check=_absolute,
        ),
    ] = ""
    secrets_dir: Annotated[
        str, key("Folder with the files that `secrets` in manifests name.", check=_absolute)
    ] = "/etc/farmd/secrets"
    secret_identities: Annotated[
        list[str],
        key(
            "Files with the node's age identities, which open sealed secrets; only the agent's user may read"
            " them.",
            form="a list of absolute paths",
            check=_all_absolute,
        ),
    ] = field(default_factory=list)
    secret_folder: Annotated[
        str,
        key(
            "Folder on tmpfs for the secret files of pods; empty: `/run/farmd-agent`, or one in `/dev/shm`.",
            check=_absolute,
        ),
    ] = ""
    allow: Annotated[
        list[str],
        key(
            "What this node allows its workloads; a folder allows binds of everything below it.",
            form=f"a list of {', '.join(ALLOWABLE)}, {NETWORK}NAME and absolute paths",
            check=_allow,
        ),
    ] = field(default_factory=lambda: [PROCESSES])
    user: Annotated[
        str,
        key(
            "User of processes and units whose manifest names no user. Empty: the agent's own user if"
            " `agent.share_user` is true, else `farmd-pods` if the agent is root, else the pod is refused.",
        ),
    ] = ""
    share_user: Annotated[
        bool,
        key(
            "Run processes and units as the agent's own user, who can read its credentials and state; for a"
            " single machine and for tests.",
        ),
    ] = False
    deny_users: Annotated[
        list[str],
        key(
            "Users that no process and no unit runs as; `*` is any text, `@NAME` are the members of a group.",
            form="a list of names, patterns and @GROUP",
        ),
    ] = field(default_factory=lambda: list(DENIED))

    cgroup: Annotated[
        str,
        key(
            "Control group (version 2) below which the agent makes one for each process, for `limits` and"
            " usage. `auto`: `farmd-pods` beside the group of the unit `farmd-agent.service`; `none`: none.",
            form="auto, none, or a folder below /sys/fs/cgroup",
            check=_cgroup,
        ),
    ] = "auto"
    pod_metrics: Annotated[
        bool, key("Export what each pod uses as metrics, of at most 200 pods; eight series for each.")
    ] = False
    owner_metrics: Annotated[
        int,
        key(
            "Export what the pods of each owner use together, of at most so many owners; ten series for each."
            " The others are summed as one. 0: none.",
            ge=0,
            le=1000,
        ),
    ] = 20
    log_to: Annotated[
        list[str],
        key(
            "Where the output of pods goes besides their files, unless their manifest says so (`logs.to`).",
            form=f"a list of {log_destinations.EXPECTED}",
            check=_log_to,
        ),
    ] = field(default_factory=list)
    log_hosts: Annotated[
        list[str],
        key("Syslog servers to which output may go; empty: all.", form="a list of host names and addresses"),
    ] = field(default_factory=list)
    log_ca: Annotated[
        str,
        key("File of the authorities of syslog servers with TLS; empty: the machine's.", check=_absolute),
    ] = ""
    exec: Annotated[
        bool,
        key(
            "Let people run commands in the pods of this node and connect to their ports: `farmctl pod exec`,"
            " `cp` and `port-forward`, by one-time keys that Consul permits (`acl/exec.hcl`).",
        ),
    ] = False
    exec_unsigned: Annotated[
        bool,
        key('With `signatures = "enforce"`: run commands of people all the same, which nobody signed.'),
    ] = False
    signatures: Annotated[
        Literal["none", "warn", "enforce"],
        key("Unsigned pods: none starts them, warn starts them with a warning, enforce refuses them."),
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
