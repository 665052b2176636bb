"""The section of a node agent (see ``farmd.config.sections``)."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from farmd.config.fields import Labels, Seconds, Section, Texts, as_value_error, formed, this_host
from store.features import ALLOWABLE
from store.keys import valid_segment
from store.selectors import valid_labels


class AgentSection(Section):
    """A node agent: `farmd agent`."""

    node: str = Field(default_factory=this_host, description="Name of this node, unique among live agents.")
    state_dir: str = Field(
        "/var/lib/farmd-agent",
        description="Folder for workloads, logs and the session's id.",
        json_schema_extra=formed("an absolute path"),
    )
    labels: Labels = Field({}, description="Facts about this node; labels set by people win.")
    port_range: str = Field(
        "20000-29999",
        description="Range that dynamic ports of pods come from.",
        json_schema_extra=formed("FIRST-LAST with 1024 <= FIRST <= LAST <= 65535"),
    )
    stop_workloads_on_exit: bool = Field(
        False, description="Stop all pods when the agent stops (for trials)."
    )
    ttl: Seconds = Field(15.0, ge=10, le=60, description="Time to live of the session, in seconds.")
    engine: str = Field(
        "",
        description="Docker-compatible API for containers; empty: this node runs none.",
        json_schema_extra=formed("unix:///PATH, or http(s)://HOST:PORT"),
    )
    systemd: str = Field(
        "",
        description="D-Bus address of the systemd that runs units; empty: this node runs none.",
        json_schema_extra=formed("unix:path=/PATH, as unix:path=/run/dbus/system_bus_socket"),
    )
    registry_auth: str = Field(
        "", description="File with credentials of registries, as `~/.docker/config.json`; read at each pull."
    )
    image_retention: Seconds = Field(
        604_800.0,
        ge=0,
        description="How long an image that the agent pulled stays once no pod needs it; 0: for ever.",
    )
    secrets_dir: str = Field(
        "/etc/farmd/secrets", description="Folder with the files that `secrets` in manifests name."
    )
    allow: Texts = Field(
        default_factory=list,
        description="What containers and units may have besides the usual; a folder allows binds below it.",
        json_schema_extra=formed(f"a list of {', '.join(ALLOWABLE)} and absolute paths"),
    )

    @field_validator("engine")
    @classmethod
    def _engine(cls, value: str) -> str:
        if value and not re.fullmatch(r"unix:///[^\0]+|https?://[^\s/]+/?", value):
            raise ValueError("expected unix:///PATH, http://HOST:PORT or https://HOST:PORT")
        return value

    @field_validator("systemd")
    @classmethod
    def _systemd(cls, value: str) -> str:
        if value and not re.fullmatch(r"unix:path=/[^\0;,]+", value):
            raise ValueError("expected unix:path=/PATH, as unix:path=/run/dbus/system_bus_socket")
        return value

    @field_validator("registry_auth", "secrets_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError("expected an absolute path")
        return value

    @field_validator("allow")
    @classmethod
    def _allow(cls, value: list[str]) -> list[str]:
        for each in value:
            if each not in ALLOWABLE and (not each.startswith("/") or ".." in each.split("/")):
                raise ValueError(f"found {each!r}, expected {', '.join(ALLOWABLE)} or an absolute path")
        return value

    @field_validator("node")
    @classmethod
    def _node(cls, value: str) -> str:
        return as_value_error(lambda text: valid_segment(text, "node"), value)

    @field_validator("state_dir")
    @classmethod
    def _state_dir(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("expected an absolute path, because processes with other folders use it")
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        return dict(as_value_error(lambda labels: valid_labels(labels, "labels"), value))

    @field_validator("port_range")
    @classmethod
    def _range(cls, value: str) -> str:
        found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
        if found is None or not 1024 <= int(found[1]) <= int(found[2]) <= 65535:
            raise ValueError("expected FIRST-LAST with 1024 <= FIRST <= LAST <= 65535")
        return value

    def ports(self) -> tuple[int, int]:
        """First and last port of the range."""
        first, _, last = self.port_range.partition("-")
        return int(first), int(last)
