"""The configuration: one frozen model for each section; every field states its meaning and unit.

An unknown key must be refused with the nearest known one, never ignored. An invalid value is reported in one
line with the key, what was found and what was expected. ``sources`` reads the values;
``docs/configuration.md`` is rendered from these models. ``reloadable`` fields may change while the process
runs (SIGHUP); the others need a restart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator
from pydantic.fields import FieldInfo

from farmd.config.agent import AgentSection
from farmd.config.fields import (
    Seconds,
    Section,
    Texts,
    as_value_error,
    extended_url,
    formed,
    http_url,
    tabled,
    this_host,
)
from farmd.config.kubernetes import KubernetesSection
from farmd.kinds import KINDS
from store.consul.environment import FORMS, Address
from store.keys import valid_name
from store.mistakes import nearest
from store.selectors import parse as parse_selector

FARM_PORT = 7520
AGENT_PORT = 7521
_SELECTABLE = " and ".join(kind.many for kind in KINDS.values() if kind.selectable)
RELOADABLE: dict[str, Any] = {"reloadable": True}
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*(?=@)|(?<=\?)\S+")


class FarmSection(Section):
    """A farm process: `farmd run`."""

    name: str = Field(default_factory=this_host, description="Name of this farm, unique among live farms.")
    kinds: Texts = Field(
        default_factory=lambda: list(KINDS),
        description="Kinds of work that the farm claims.",
        json_schema_extra=formed(f"a list of some of {', '.join(KINDS)}"),
    )
    selector: str = Field(
        "",
        description=f"Claim only {_SELECTABLE} whose labels match (Kubernetes grammar); other work has"
        " no labels.",
        json_schema_extra=formed("a selector, such as team=web,tier!=test"),
    )
    ttl: Seconds = Field(10.0, ge=10, le=60, description="Time to live of the session, in seconds.")
    lost_after: Seconds = Field(
        60.0, ge=1, le=86400, description="Seconds that a node's agent may be absent before the node is lost."
    )
    max_transfers: int = Field(
        50, ge=1, description="Pods of the whole fleet that may move between nodes at once."
    )
    drain: Seconds = Field(
        0.0,
        ge=0,
        le=3600,
        description="Seconds that a farm may take to hand its work over when it is stopped, less than"
        " systemd's `TimeoutStopSec`; 0: it frees all locks at once, and others claim them within a second.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return as_value_error(valid_name, value)

    @field_validator("kinds")
    @classmethod
    def _kinds(cls, value: list[str]) -> list[str]:
        for kind in value:
            if kind not in KINDS:
                raise ValueError(f"found {kind!r}{nearest(kind, list(KINDS))}")
        if not value or len(set(value)) < len(value):
            raise ValueError(f"found {value}, expected at least one kind, and each once")
        return value

    @field_validator("selector")
    @classmethod
    def _selector(cls, value: str) -> str:
        if value:
            as_value_error(parse_selector, value)
        return value


class HousekeepingSection(Section):
    """Removal of unused manifests and old audit records, by one farm at a time. Times are seconds."""

    interval: Seconds = Field(3600.0, ge=1, description="Time between two rounds.")
    manifest_age: Seconds = Field(
        24 * 3600.0, ge=0, description="How long a manifest without a reference is kept."
    )
    audit_retention: Seconds = Field(
        7 * 24 * 3600.0, ge=3600, description="How long audit records are kept; whole hours are deleted."
    )


class SchedulerSection(Section):
    """The scheduler that chooses nodes: the built-in one, or a remote one over HTTP."""

    url: str = Field("", description="Address of a remote scheduler; empty: the built-in one chooses.")
    timeout: Seconds = Field(5.0, gt=0, le=60, description="How long an answer may take, in seconds.")
    pause: Seconds = Field(
        30.0, ge=0, description="Seconds until a remote scheduler that failed is asked again."
    )
    fallback: Literal["built-in", "block"] = Field(
        "built-in",
        description="Without a usable answer: use the built-in scheduler, or block with the reason.",
    )
    token_file: str = Field("", description="File with its bearer token, read again for each request.")

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        return extended_url(value)


class RolloutsSection(Section):
    """The Prometheus that gates of rollouts query."""

    prometheus_url: str = Field("", description="Its address; empty: queries of gates have no data.")
    prometheus_token_file: str = Field(
        "", description="File with its bearer token, read again when it changes."
    )

    @field_validator("prometheus_url")
    @classmethod
    def _url(cls, value: str) -> str:
        return extended_url(value)


class StoreSection(Section):
    """The connection to Consul; TLS and the rest come from the `CONSUL_*` variables."""

    address: str = Field(
        "",
        description="Address of Consul; CONSUL_HTTP_ADDR wins over a file's value.",
        json_schema_extra=formed(FORMS),
    )
    prefix: str = Field(
        "farmd/",
        description="All keys live under it; it ends in a slash.",
        json_schema_extra=formed("names that each end in '/', for example 'farmd/'"),
    )
    token_file: str = Field("", description="File with the ACL token, read again when it changes.")

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        as_value_error(lambda text: Address.from_environment({}, text), value)
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]*/)+", value) or ".." in value:
            raise ValueError("expected names that each end in '/', for example 'farmd/'")
        return value


class LogSection(Section):
    """Logs, which go to stdout."""

    level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "info", description="Lowest level that is logged.", json_schema_extra=RELOADABLE
    )
    format: Literal["auto", "json", "pretty"] = Field("auto", description="auto: pretty on a terminal only.")


class WebSection(Section):
    """HTTP of the farm and the agent: metrics, health, status."""

    bind: str = Field("127.0.0.1", description="Address to listen on.", min_length=1)
    farm_port: int = Field(FARM_PORT, ge=0, le=65535, description="Port of `farmd run`; 0 takes a free one.")
    agent_port: int = Field(
        AGENT_PORT, ge=0, le=65535, description="Port of `farmd agent`; 0 takes a free one."
    )
    advertise: str = Field(
        "", description="Host name of this process for other machines; empty: the bind address."
    )
    port_file: str = Field("", description="File that gets the chosen port once the process listens.")

    @field_validator("advertise")
    @classmethod
    def _advertise(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]*|[0-9A-Fa-f:.]+(%\w+)?", value):
            raise ValueError("expected a host name or an IP address, without a scheme or a port")
        return value


class SinkSection(Section):
    """One receiver of alerts."""

    type: Literal["log", "webhook"]
    url: str = Field("", description="Address that a webhook posts to.")
    secret: SecretStr = Field(SecretStr(""), description="Key that signs a webhook's messages.")
    secret_file: str = Field("", description="File with that key.")
    timeout: Seconds = Field(10.0, gt=0, le=120, description="Seconds for one delivery.")


class AlertsSection(Section):
    """The receivers of alerts."""

    sinks: Annotated[list[SinkSection], BeforeValidator(tabled)] = Field(
        [SinkSection(type="log")],
        description="Receivers of alerts.",
        json_schema_extra=RELOADABLE | formed("a list of tables"),
    )

    @field_validator("sinks")
    @classmethod
    def _complete(cls, value: list[SinkSection]) -> list[SinkSection]:
        for place, sink in enumerate(value):
            try:
                _ = sink.type == "webhook" and http_url(sink.url)
            except ValueError as error:
                raise ValueError(f"sinks[{place}].url: found {shown(sink.url)}, {error}") from error
        return value


class Config(Section):
    """The whole valid configuration. Built only by ``sources.load``."""

    farm: FarmSection = Field(default_factory=FarmSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    rollouts: RolloutsSection = Field(default_factory=RolloutsSection)
    kubernetes: KubernetesSection = Field(default_factory=KubernetesSection)
    housekeeping: HousekeepingSection = Field(default_factory=HousekeepingSection)
    agent: AgentSection = Field(default_factory=AgentSection)
    store: StoreSection = Field(default_factory=StoreSection)
    log: LogSection = Field(default_factory=LogSection)
    web: WebSection = Field(default_factory=WebSection)
    alerts: AlertsSection = Field(default_factory=AlertsSection)


def sections() -> dict[str, type[Section]]:
    """Name → model of each section, in order."""
    return {name: field.annotation for name, field in Config.model_fields.items()}  # type: ignore[misc]


def fields() -> Iterator[tuple[str, type[Section], str, FieldInfo]]:
    """(section, its model, key, field) of all keys, in order."""
    for section, model in sections().items():
        for key, field in model.model_fields.items():
            yield section, model, key, field


def shown(value: object) -> str:
    """A value for people: secrets and the credentials of addresses hidden, text in TOML's form."""
    if isinstance(value, str):
        return json.dumps(_CREDENTIALS.sub("[hidden]", value), ensure_ascii=False)
    if isinstance(value, SecretStr):
        return '"[hidden]"' if value.get_secret_value() else '""'
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name} = {shown(item)}" for name, item in value) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_bare(name)} = {shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as TOML writes it
    return json.dumps(value, ensure_ascii=False)


def _bare(name: str) -> str:
    """A TOML key, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
