"""The configuration: one frozen record for each section; every field states its meaning and unit.

An unknown key must be refused with the nearest known one, never ignored. An invalid value is reported in one
line with the key, what was found and what was expected. ``sources`` reads the values;
``docs/configuration.md`` is rendered from these records. ``reloadable`` fields may change while the process
runs (SIGHUP); the others need a restart. A farm's start waits for this module, so it uses msgspec, which the
farm needs anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import field, structs

from farmd.config.alerts import SinkSection, complete
from farmd.config.fields import Key, Section, extended_url, key, keys, this_host
from farmd.config.kubernetes import KubernetesSection
from farmd.kinds import KINDS
from store.artifacts import source_mistake
from store.consul.environment import FORMS, Address
from store.credentials import told
from store.features import ALLOWABLE, NETWORK, PROCESSES
from store.keys import valid_name, valid_segment
from store.mistakes import nearest
from store.nodes import is_volume_name
from store.selectors import parse as parse_selector
from store.selectors import valid_labels

# The section of a node agent (see ``farmd.config.sections``).

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


def _state_dir(value: str) -> None:
    if not value.startswith("/"):
        raise ValueError("expected an absolute path, because processes in other folders use it")


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
    secrets_dir: Annotated[
        str, key("Folder with the files that `secrets` in manifests name.", check=_absolute)
    ] = "/etc/farmd/secrets"
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


FARM_PORT = 7520
AGENT_PORT = 7521
*_FIRST, _LAST = (kind.many for kind in KINDS.values() if kind.selectable)


def _kinds(value: list[str]) -> None:
    for kind in value:
        if kind not in KINDS:
            raise ValueError(f"found {kind!r}{nearest(kind, list(KINDS))}")
    if not value or len(set(value)) < len(value):
        raise ValueError(f"found {value}, expected at least one kind, and each once")


def _selector(value: str) -> None:
    if value:
        parse_selector(value)


def _address(value: str) -> None:
    Address.from_environment({}, value)


def _prefix(value: str) -> None:
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]*/)+", value) or ".." in value:
        raise ValueError("expected names that each end in '/', for example 'farmd/'")


def _session_node(value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.-]*", value):
        raise ValueError("expected the name of a node in Consul's catalogue")


def _advertised(value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]*|[0-9A-Fa-f:.]+(%\w+)?", value):
        raise ValueError("expected a host name or an IP address, without a scheme or a port")


class FarmSection(Section, frozen=True):
    """A farm process: `farmd run`."""

    name: Annotated[str, key("Name of this farm, unique among live farms.", check=valid_name)] = field(
        default_factory=this_host
    )
    kinds: Annotated[
        list[str],
        key(
            "Kinds of work that the farm claims.",
            form=f"a list of some of {', '.join(KINDS)}",
            check=_kinds,
        ),
    ] = field(default_factory=lambda: list(KINDS))
    selector: Annotated[
        str,
        key(
            f"Claim only {', '.join(_FIRST)} and {_LAST} whose labels match (Kubernetes grammar);"
            " other work has no labels.",
            form="a selector, such as team=web,tier!=test",
            check=_selector,
        ),
    ] = ""
    ttl: Annotated[float, key("Time to live of the session, in seconds.", ge=10, le=60)] = 10.0
    lost_after: Annotated[
        float,
        key("Seconds that a node's agent may be absent before the node is lost.", ge=1, le=86400),
    ] = 60.0
    max_transfers: Annotated[
        int, key("How many pods in the whole fleet may move between nodes at once.", ge=1)
    ] = 50
    drain: Annotated[
        float,
        key(
            "Seconds that a farm may take to hand its work over when it is stopped, less than"
            " systemd's `TimeoutStopSec`; 0: it frees all locks at once, and others claim them within a"
            " second.",
            ge=0,
            le=3600,
        ),
    ] = 0.0


class ServicesSection(Section, frozen=True):
    """Services in Consul's catalogue; the same on all farms."""

    catalog: Annotated[
        Literal["asked", "all"],
        key("Which services with a port are registered: those that ask for it, or all of them."),
    ] = "asked"
    register_members: Annotated[
        bool, key("Whether farms and agents are there as `farmd-farm` and `farmd-agent`, for Prometheus.")
    ] = False


class HousekeepingSection(Section, frozen=True):
    """Removal of unused manifests and old audit records, by one farm at a time. Times are seconds."""

    interval: Annotated[float, key("Time between two rounds.", ge=1)] = 3600.0
    manifest_age: Annotated[float, key("How long an unreferenced manifest is kept.", ge=0)] = 24 * 3600.0
    audit_retention: Annotated[
        float, key("How long audit records are kept; whole hours are deleted.", ge=3600)
    ] = 7 * 24 * 3600.0


class SchedulerSection(Section, frozen=True):
    """The scheduler that chooses nodes: the built-in one, or a remote one over HTTP."""

    url: Annotated[
        str, key("Address of a remote scheduler; empty: the built-in one chooses.", check=extended_url)
    ] = ""
    timeout: Annotated[float, key("How long an answer may take, in seconds.", gt=0, le=60)] = 5.0
    pause: Annotated[float, key("Seconds until a remote scheduler that failed is tried again.", ge=0)] = 30.0
    fallback: Annotated[
        Literal["built-in", "block"],
        key("What happens without a usable answer: the built-in scheduler chooses, or the item is blocked."),
    ] = "built-in"
    token_file: Annotated[str, key("File with its bearer token, read again for each request.")] = ""


class RolloutsSection(Section, frozen=True):
    """The Prometheus that gates of rollouts query."""

    prometheus_url: Annotated[
        str, key("Its address; empty: queries of gates have no data.", check=extended_url)
    ] = ""
    prometheus_token_file: Annotated[str, key("File with its bearer token, read again when it changes.")] = ""


class StoreSection(Section, frozen=True):
    """The connection to Consul; TLS and the rest come from the `CONSUL_*` variables."""

    address: Annotated[
        str,
        key(
            "Address of Consul; CONSUL_HTTP_ADDR wins over a file's value.",
            form=FORMS,
            check=_address,
        ),
    ] = ""
    prefix: Annotated[
        str,
        key(
            "Prefix of all keys; it ends in a slash.",
            form="names that each end in '/', for example 'farmd/'",
            check=_prefix,
        ),
    ] = "farmd/"
    token_file: Annotated[str, key("File with the ACL token, read again when it changes.")] = ""
    session_node: Annotated[
        str,
        key(
            "Node of Consul's catalogue that owns the session; empty: that of the Consul agent that answers.",
            form="the name of a node in Consul's catalogue",
            check=_session_node,
        ),
    ] = ""


class LogSection(Section, frozen=True):
    """Logs, which go to stdout."""

    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        key("Lowest level that is logged.", reloadable=True),
    ] = "info"
    format: Annotated[Literal["auto", "json", "pretty"], key("auto: pretty on a terminal, else JSON.")] = (
        "auto"
    )


class WebSection(Section, frozen=True):
    """HTTP of the farm and the agent: metrics, health, status; of the farm also the page."""

    bind: Annotated[str, key("Address to listen on.", min_length=1)] = "127.0.0.1"
    farm_port: Annotated[int, key("Port of `farmd run`; 0 picks a free one.", ge=0, le=65535)] = FARM_PORT
    agent_port: Annotated[int, key("Port of `farmd agent`; 0 picks a free one.", ge=0, le=65535)] = AGENT_PORT
    advertise: Annotated[
        str,
        key(
            "Host name of this process for other machines; empty: the bind address.",
            check=_advertised,
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        key(
            "PEM file with the certificate of this process and the intermediate certificates; empty:"
            " HTTP without TLS. Read again when it changes."
        ),
    ] = ""
    tls_key: Annotated[str, key("PEM file with its key; read again when it changes.")] = ""
    client_ca: Annotated[
        str,
        key(
            "PEM file with the CAs of client certificates, which every request then needs; empty:"
            " no client certificate is needed. Read again when it changes."
        ),
    ] = ""
    port_file: Annotated[str, key("File to which the process writes its port once it listens.")] = ""
    tokens: Annotated[
        str,
        key(
            "File of tokens for the farm's page and API, one line `name role hash` each"
            " (`farmctl token create`); read again when it changes."
        ),
    ] = ""
    read: Annotated[
        Literal["auto", "open", "token"],
        key(
            "Whether reads need a credential. auto: an agent's pods and logs always do. The page and its API"
            " do, too, unless web.tokens is empty, web.bind is a loopback address, and the request names a"
            " loopback host and came through no proxy."
        ),
    ] = "auto"
    metrics: Annotated[Literal["open", "token"], key("Whether `/metrics` needs a token of web.tokens.")] = (
        "open"
    )


class AlertsSection(Section, frozen=True):
    """The receivers of alerts."""

    sinks: Annotated[
        list[SinkSection],
        key("Receivers of alerts.", form="a list of tables", reloadable=True, check=complete),
    ] = field(default_factory=lambda: [SinkSection(type="log")])
    page: Annotated[
        str,
        key(
            "Address of the page in links of alerts, such as https://farms.example; empty: that of the farm"
            " that sends them.",
            reloadable=True,
            check=extended_url,
        ),
    ] = ""


class Config(Section, frozen=True):
    """The whole valid configuration. Built only by ``sources.load``."""

    farm: FarmSection = FarmSection()
    scheduler: SchedulerSection = SchedulerSection()
    rollouts: RolloutsSection = RolloutsSection()
    kubernetes: KubernetesSection = KubernetesSection()
    services: ServicesSection = ServicesSection()
    housekeeping: HousekeepingSection = HousekeepingSection()
    agent: AgentSection = AgentSection()
    store: StoreSection = StoreSection()
    log: LogSection = LogSection()
    web: WebSection = WebSection()
    alerts: AlertsSection = AlertsSection()


def sections() -> dict[str, type[Section]]:
    """Name → record of each section, in order."""
    return {one.name: one.type for one in structs.fields(Config)}


def every_key() -> Iterator[tuple[str, Key]]:
    """(section, key) of all keys, in order."""
    for section, model in sections().items():
        for one in keys(model).values():
            yield section, one
