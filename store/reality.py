"""Intents and reality of pods: what a node must run, and what it runs."""

from __future__ import annotations

import signal
import sys
from typing import ClassVar, Literal

import msgspec

from store.times import Time

# Intents: what a node must run. Workers write them, and the node's agent runs them.
#
# An intent is always created with compare-and-set 0, so an instance on a node has only one owner.


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instance that the node must run: digest of the manifest and the owner's id.

    ``restart`` counts the restarts that were asked for; the agent acts on each rise once (R28).
    ``vars`` are variables for the next start's environment. ``hold``: the agent prepares the first start,
    chooses the ports, and starts nothing before ``hold`` is off. ``peers`` is the digest of a document that
    names the instance's peers; empty without one (R29).
    """

    manifest: str
    owner: str
    restart: int = 0
    vars: dict[str, str] = {}
    hold: bool = False
    peers: str = ""


_NO_VARS: dict[str, str] = {}


class SharedIntents:
    """Keeps one copy of the intents of an owner, which are nearly always equal."""

    LIMIT = 200_000

    def __init__(self) -> None:
        self._known: dict[str, Intent] = {}

    def shared(self, intent: Intent) -> Intent:
        """An equal intent, with its strings shared."""
        known = self._known.get(intent.owner)
        if known != intent:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            manifest, owner = sys.intern(intent.manifest), sys.intern(intent.owner)
            peers = sys.intern(intent.peers)
            known = Intent(manifest, owner, intent.restart, intent.vars or _NO_VARS, intent.hold, peers)
            self._known[owner] = known
        return known


# Reality: what a node runs, with the health of each start. Only the node's agent writes it.

HealthState = Literal["critical", "unknown", "warning", "passing"]
Phase = Literal["starting", "held", "running", "backoff", "stopping", "failed", "exited", "done"]
Cause = Literal["", "lost", "oom"]


class Health(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Health of one start; ``since`` is when this state began, ``reason`` one line for people."""

    state: HealthState = "unknown"
    since: Time = 0.0
    reason: str = ""


class Exit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One end of a workload: its exit code, or minus the signal; ``at`` is seconds since the epoch.

    ``cause``: ``lost`` if nobody saw how it ended (its node was restarted, its shim or container was
    removed), ``oom`` if it went over its limit of memory. ``message`` is what it wrote into the file
    ``$FARMD_RESULT``. ``unhealthy``: the agent ended it, because it failed its check for too long.
    """

    at: Time
    code: int
    cause: Cause = ""
    message: str = ""
    unhealthy: bool = False


def ending(code: int) -> str:
    """How a workload ended: ``exited with code 1``, ``ended by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a pod uses at a time, by the counters of its control group; agents answer it, nothing stores it.

    ``cores`` are those of the last seconds. Memory and disk are bytes; a limit of 0 is none. ``oom_kills``
    counts the processes that the kernel killed because of the limit of memory.
    """

    at: Time = 0.0
    cores: float = 0.0
    cpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    memory: int = 0
    memory_peak: int = 0
    memory_limit: int = 0
    pids: int = 0
    pids_limit: int = 0
    io_read: int = 0
    io_written: int = 0
    oom_kills: int = 0


class Forwarded(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the output of a pod, or of its sidecar ``process``, goes to one destination.

    Agents answer it, nothing stores it.

    ``sent``, ``lost`` and ``behind`` are bytes: sent by this agent, rotated away before they were sent, and
    not sent yet. ``problem`` says why nothing is sent now.
    """

    to: str
    process: str = ""
    sent: int = 0
    lost: int = 0
    behind: int = 0
    problem: str = ""


class SidecarStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A program beside a pod's workload: since when it runs, or does not, and ``reason`` in one line."""

    runs: bool = False
    since: Time = 0.0
    restarts: int = 0
    reason: str = ""


class Reality(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One instance on a node. ``started`` (seconds since the epoch) identifies the start (R22).

    ``intent`` is the ModifyIndex of the intent that the agent acted on, ``restart`` the counter that the last
    start acted on (R28); ``exits`` are the last few. ``refused`` is the ModifyIndex of a newer intent that
    the agent cannot act on, for the ``reason``; 0 without one. ``preparing``: what the agent gets ready for
    the next start, such as ``pulling web:2: 48 of 120 MB``.
    A pod that is ``held`` is ready to start, and has the ``ports`` that it will have (R29).
    A pod that is ``done`` ended, and its restart policy asks for no other start: its health is passing if its
    last exit code is 0, else critical. ``leaves_until``: when a pod that is ``stopping`` gets the stop signal
    at the latest; 0 once it was sent, or where it is sent at once (R39). ``old_user``: the user as whom an
    earlier version of the agent started it, where this version would run it as another one or not at all.
    """

    LARGEST: ClassVar[int] = 64 * 1024
    """What an agent writes is kept by Consul's servers and read by all farms, so it has a bound (R22)."""

    manifest: str
    owner: str = ""
    phase: Phase = "running"
    started: Time = 0.0
    intent: int = 0
    restart: int = 0
    pid: int = 0
    ports: dict[str, int] = {}
    restarts: int = 0
    exits: list[Exit] = []
    health: Health = Health()
    reason: str = ""
    refused: int = 0
    preparing: str = ""
    old_user: str = ""
    leaves_until: Time = 0.0
    sidecars: dict[str, SidecarStatus] = {}


class Glance(msgspec.Struct, frozen=True, gc=False):
    """The fields of a reality that decisions use; a farm keeps tens of thousands of them in memory.

    ``since`` is the time of its last change of health, by its agent's clock; ``seen`` the time when this
    process first saw it with this start and this health, by its own monotonic clock. ``ended`` is how a pod
    that is done ended; ``ports`` are those of a pod that is held or done; ``reason`` says why a pod does not
    start; ``leaving``: it leaves, and has no stop signal yet (R39).
    """

    manifest: str
    owner: str
    phase: Phase
    started: Time
    state: HealthState
    intent: int = 0
    since: Time = 0.0
    seen: float = 0.0
    restarts: int = 0
    ended: Exit | None = None
    ports: dict[str, int] = {}
    reason: str = ""
    leaving: bool = False


_NO_PORTS: dict[str, int] = {}


def glance(reality: Reality) -> Glance:
    """The fields of a reality that decisions use."""
    done = reality.phase == "done"
    return Glance(
        sys.intern(reality.manifest),
        sys.intern(reality.owner),
        reality.phase,
        reality.started,
        reality.health.state,
        reality.intent,
        # Without a health check both times are the same: one number for both saves memory.
        reality.started if reality.health.since == reality.started else reality.health.since,
        restarts=reality.restarts,
        ended=reality.exits[-1] if done and reality.exits else None,
        ports=reality.ports if done or reality.phase == "held" else _NO_PORTS,
        reason=reality.reason if reality.phase in ("failed", "starting") or reality.refused else "",
        leaving=reality.leaves_until > 0,
    )


def dated(now: Glance, before: Glance | None, at: float) -> Glance:
    """A glance with ``seen``: ``at``, or the value of ``before`` if start and health have not changed.

    The agent's times are only compared for equality, so an error of its clock does no harm.
    """
    if before is not None and _spell(before) == _spell(now):
        at = before.seen
    return msgspec.structs.replace(now, seen=at)


def _spell(seen: Glance) -> tuple[object, ...]:
    """The fields that stay the same while one start keeps its health."""
    return seen.manifest, seen.phase, seen.started, seen.state, seen.since


def passes(seen: Reality | Glance | None, manifest: str) -> bool:
    """Whether a pod runs this manifest and passes its check, or is done with it for good (R22)."""
    if seen is None or seen.manifest != manifest or seen.phase not in ("running", "done"):
        return False
    state = seen.state if isinstance(seen, Glance) else seen.health.state
    return state == "passing"


def fails(seen: Glance) -> bool:
    """Whether a pod is known not to work; a pod of unknown health does not fail."""
    return seen.state == "critical" or seen.phase in ("backoff", "failed")
