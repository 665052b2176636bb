"""The agent's settings, and the record of one instance on disk.

With the record a restarted agent continues without the store: it names the wanted manifest, the last
start and the failures. It is written before the action that it describes, so that a crash of the agent
between the two never leaves an unknown process behind (R26).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from farmd.agent.secrets import SecretConfig
from farmd.agent.users import Users
from store.manifests import Manifest
from store.presence import start_ticks
from store.reality import Exit, Health, Reality

EXITS_KEPT = 5


def name_of(node: str, instance: str) -> str:
    """The one name of a node's instance; names of nodes and instances have no ``..``."""
    return f"farmd..{node}..{instance}".replace("~", "..")


LOST = -int(signal.SIGKILL)
"""The exit code of an end that nothing recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactConfig:
    """The node's settings of artifacts. ``most`` and ``unpacked`` are bytes, ``timeout`` and ``retention``
    seconds; ``registries`` are base URLs by name, ``hosts`` those that may be asked; empty: any."""

    allow: tuple[str, ...] = ()
    most: int = 2 << 30
    unpacked: int = 8 << 30
    timeout: float = 3600.0
    retention: float = 604_800.0
    auth: str = ""
    ca: str = ""
    proxy: str = ""
    hosts: tuple[str, ...] = ()
    registries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent. Times are seconds.

    Dynamic ports come from ``port_range`` (both ends included), which is below Linux' own range for
    outgoing connections. ``address`` is the address of the agent's HTTP for other machines. Health checks
    connect to ``check_host``. ``labels`` win over the agent's own facts. ``watch_wait`` bounds the time
    until the agent notices a restore of the store from a snapshot (R16). ``users``: as whom programs of the
    node run. ``farm_ca`` is the file of the authorities
    of farms' certificates; empty: the machine's. ``cgroup`` is the folder below which its processes get
    control groups, ``auto`` or ``none``.
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
    users: Users = field(default_factory=Users)
    artifacts: ArtifactConfig = field(default_factory=ArtifactConfig)
    secrets: SecretConfig = field(default_factory=SecretConfig)
    cgroup: str = "auto"
    pod_metrics: bool = False
    owner_metrics: int = 20
    log_to: tuple[str, ...] = ()
    log_hosts: tuple[str, ...] = ()
    log_ca: str = ""
    farm_ca: str = ""
    asks_for_keys: bool = False
    """Whether its HTTP wants a one-time key of who has no token."""
    exec: bool = False
    """Whether people may run commands in its pods, by one-time keys."""
    exec_signed: bool = False
    """Whether it refuses such commands, because nobody signed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """The URL of the engine, what containers may have besides the usual (``allow``), a file with credentials
    of registries (or empty), and the folder of the secrets that manifests name. ``image_retention``: for how
    many seconds an image that the agent pulled stays once no pod needs it; 0: for ever."""

    engine: str
    allow: tuple[str, ...] = ()
    registry_auth: str = ""
    secrets_dir: Path = Path("/etc/farmd/secrets")
    image_retention: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemdConfig:
    """The address of systemd's bus, and what is told of it in ``ContainerConfig``."""

    bus: str
    allow: tuple[str, ...] = ()
    secrets_dir: Path = Path("/etc/farmd/secrets")


Policy = Literal["warn", "enforce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningConfig:
    """What becomes of a pod that nobody signed, and the file of the keys that this node trusts."""

    policy: Policy
    trust: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One instance, as the agent keeps it on disk.

    ``manifest``, ``owner`` and ``intent`` (its ModifyIndex) describe the newest intent that the agent can
    act on; ``acted`` is the ModifyIndex of the intent that it acted on. ``running`` is the digest of the last
    start; ``start`` is that start's id, empty once its end was recorded. ``fresh``: the next start is the
    first of its pod. ``failures`` counts ends in a row, ``failing_since`` is the time of the first of them,
    ``not_before`` the time of the next start at the earliest; times are seconds since the epoch. ``restart``
    is the intent's counter, ``restarted`` the one that the last start acted on (R28; below 0: not known,
    because an older agent started it). ``runtime`` is the runtime of the last start.
    ``done``: that start ended, and its restart policy asks for no other one.
    ``vars``, ``hold`` and ``peers`` are the intent's (R29). ``held``: the ports were chosen and told before
    the first start, so no start has other ones. ``start_by``: until when, in seconds since the epoch, this
    manifest may start here for the first time, by its signature; 0: no signature was asked for (R32).
    ``revoked`` says why it must not start again either; empty: it may. ``leaving`` is the id of the start
    that leaves before it is stopped, since ``left_at``; ``left``: it has got its stop signal (R39).
    ``ailing`` is the id of the start that the agent ends because it failed its check for too long.
    """

    instance: str
    wanted: bool = True
    manifest: str = ""
    owner: str = ""
    intent: int = 0
    acted: int = 0
    restart: int = 0
    restarted: int = -1
    running: str = ""
    runtime: str = "process"
    start: str = ""
    started: float = 0.0
    ports: dict[str, int] = {}
    restarts: int = 0
    fresh: bool = False
    done: bool = False
    vars: dict[str, str] = {}
    hold: bool = False
    peers: str = ""
    held: bool = False
    start_by: float = 0.0
    revoked: str = ""
    leaving: str = ""
    left_at: float = 0.0
    left: bool = False
    ailing: str = ""
    ruled: bool = False
    failures: int = 0
    failing_since: float = 0.0
    not_before: float = 0.0
    exits: list[Exit] = []
    reason: str = ""

    @property
    def superseded(self) -> bool:
        """Whether the intent asks for another start than the last one: of another manifest, or a restart."""
        return self.running != self.manifest or self.restart_due

    @property
    def restarts_unhealthy(self) -> bool:
        """Whether the agent ends the last start because of its check, and nothing else asks for its end."""
        return self.ailing == self.start != "" and self.wanted and not self.superseded

    def has_started(self, sha: str) -> bool:
        """Whether this pod started that manifest before, so that no signature is asked for again (R32).

        What the instance ran before its pod was removed does not count.
        """
        return self.running == sha and (not self.fresh or self.start_by > 0)

    def keeps(self, sha: str) -> bool:
        """Whether this pod started that manifest under an agent that had no rules of users: it goes on so."""
        return sha == self.running != "" and not (self.fresh or self.ruled)

    @property
    def restart_due(self) -> bool:
        """Whether a restart was requested since the last start."""
        return 0 <= self.restarted < self.restart


class SavedHealth(msgspec.Struct, frozen=True):
    """The last published health and the start that it belongs to; an adopted pod keeps it."""

    start: str
    health: Health


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's identity, as its shim recorded it before the workload began (R26).

    ``shim`` and ``pid`` identify processes only together with their start ticks and the boot id, because
    process ids are reused. ``restart`` is the counter that the start acted on (R28). ``runtime`` says what
    runs it; what is no process of a shim has a ``handle`` of that runtime in place of ``boot`` and the shim.
    ``user`` is the name of the user that it was started as; empty by the rules of earlier versions. ``group``
    is the folder of the control group that the shim made for it.
    """

    boot: str = ""
    shim: int = 0
    shim_ticks: int = 0
    pid: int = 0
    ticks: int = 0
    instance: str
    manifest: str
    start: str
    started: float
    ports: dict[str, int] = {}
    restart: int = -1
    runtime: str = "process"
    handle: str = ""
    user: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class WantedPod:
    """One intent of a proven answer. Without ``manifest``, ``problem`` says why it is unusable.

    ``told`` is what the store holds as this agent's word on a pod whose record it does not have (R29).
    ``unsigned`` says why no signature permits the start; with a ``manifest`` it is a warning. ``start_by``
    is the record's. ``revoked``: what this pod started before must not start again.
    """

    instance: str
    index: int
    sha: str = ""
    owner: str = ""
    manifest: Manifest | None = None
    problem: str = ""
    restart: int = 0
    vars: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False
    peers: str = ""
    told: Reality | None = None
    unsigned: str = ""
    start_by: float = 0.0
    revoked: bool = False

    @property
    def ended(self) -> Reality | None:
        """What was told of its pod, if that was done, and nothing asks for another start since."""
        told = self.told
        done = told is not None and told.phase == "done" and told.owner in ("", self.owner)
        return told if done and told is not None and told.manifest == self.sha else None


# Whether a recorded process still lives: pids are reused, so boot id and start time count too (R26).


def shim_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded shim is still that very process."""
    return identity.boot == boot and start_ticks(identity.shim) == identity.shim_ticks


def workload_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded workload is still that very process."""
    return identity.boot == boot and start_ticks(identity.pid) == identity.ticks
