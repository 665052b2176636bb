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

from farmd.config.agent import AgentSection
from farmd.config.alerts import SinkSection, complete
from farmd.config.fields import Key, Section, extended_url, key, keys, this_host
from farmd.config.kubernetes import KubernetesSection
from farmd.kinds import KINDS
from store.consul.environment import FORMS, Address
from store.keys import valid_name
from store.mistakes import nearest
from store.nodes import is_host
from store.selectors import parse as parse_selector

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
    if value and not is_host(value):
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
    follow: Annotated[
        list[str],
        key(
            "Prefixes of Consul's keys outside of farmd's own that this farm reads for owners with `follow:"
            " true`. Anyone who may write such an owner sees these values."
        ),
    ] = field(default_factory=list)
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
