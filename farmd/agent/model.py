"""What the agent knows of its pods: its configuration, and the record of one instance on disk.

The record is what lets a restarted agent go on without the store: what is wanted, what was started,
how often it failed. It is written before the act that it describes, so that a crash of the agent
between the two never leaves an unknown process behind (R26).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from store.manifests import Manifest
from store.reality import Exit, Health

EXITS_KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent. Times are seconds.

    ``port_range`` (both ends included) is where dynamic ports come from; it lies below Linux' own range
    for outgoing connections. ``address`` is where the agent's HTTP listens, as others reach it.
    ``check_host`` is where health checks look for the pods. ``labels`` win over the agent's own facts.
    ``watch_wait`` bounds how long a restore of the store from a snapshot may go unseen (R16).
    """

    node: str
    state_dir: Path
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    port_range: tuple[int, int] = (20000, 29999)
    check_host: str = "127.0.0.1"
    session_ttl: float = 15.0
    watch_wait: float = 25.0
    retry_unusable: float = 15.0
    stop_workloads_on_exit: bool = False


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One instance, as the agent keeps it on disk.

    ``manifest``, ``owner`` and ``intent`` (its ModifyIndex) are the newest intent that could be acted on;
    ``acted`` is the one that was. ``running`` is the digest of the last start; ``start`` is that start's
    id and empty once its end was recorded. ``fresh``: the next start is the first of its pod. ``failures``
    counts ends in a row, ``failing_since`` is when the first of them came, ``not_before`` is when it may
    start again; times are seconds since the epoch.
    """

    instance: str
    wanted: bool = True
    manifest: str = ""
    owner: str = ""
    intent: int = 0
    acted: int = 0
    running: str = ""
    start: str = ""
    started: float = 0.0
    ports: dict[str, int] = {}
    restarts: int = 0
    fresh: bool = False
    failures: int = 0
    failing_since: float = 0.0
    not_before: float = 0.0
    exits: list[Exit] = []
    reason: str = ""


class SavedHealth(msgspec.Struct, frozen=True):
    """Health as last published, beside the start that it belongs to: an adopted pod keeps it."""

    start: str
    health: Health


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a workload is, as its shim recorded it before the workload began (R26).

    ``shim`` and ``pid`` mean what they say only together with their start ticks and the boot id: process
    ids are used again.
    """

    boot: str
    shim: int
    shim_ticks: int
    pid: int
    ticks: int
    instance: str
    manifest: str
    start: str
    started: float
    ports: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One intent of a proven answer. Without ``manifest``, ``problem`` says why it cannot be acted on."""

    instance: str
    index: int
    sha: str = ""
    owner: str = ""
    manifest: Manifest | None = None
    problem: str = ""
