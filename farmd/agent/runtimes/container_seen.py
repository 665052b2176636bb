"""What an engine says of one container, in the agent's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from farmd.agent.model import LOST, Identity
from farmd.agent.runtimes import container_config
from store.reality import Exit
from store.times import seconds_of

LIVE = frozenset({"running", "paused", "restarting", "stopping"})
ENDED = frozenset({"exited", "stopped", "dead", "removing"})


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """One container, as the engine described it, with the names of its volumes and the label of its lease."""

    state: str
    identity: Identity
    sizes: tuple[int, int]
    exit: Exit | None = None
    why: str = ""
    volumes: tuple[str, ...] = ()
    lease: str = ""


def described(found: Mapping[str, Any]) -> EngineContainer:
    """What an engine's description says of a container that an agent made.

    Raises:
        KeyError, ValueError: an agent did not make it.
    """
    mounts = found.get("Mounts") or []
    volumes = tuple(str(each.get("Name")) for each in mounts if each.get("Type") == "volume")
    lease = str(found["Config"]["Labels"].get(container_config.LEASE, ""))
    return replace(_described(found), volumes=volumes, lease=lease)


def _described(found: Mapping[str, Any]) -> EngineContainer:
    state, labels = found["State"], found["Config"]["Labels"]
    status = str(state["Status"]).lower()
    identity = container_config.identity(labels, str(found["Id"]), int(state.get("Pid") or 0))
    max_bytes, _, keep = labels["farmd.logs"].partition(" ")
    sizes = int(max_bytes), int(keep)
    if status in LIVE:
        return EngineContainer(status, identity, sizes)
    if str(state.get("StartedAt", "")).startswith("0001") or status == "initialized":
        return EngineContainer(status, identity, sizes)  # made, and never started
    if status not in ENDED:
        why = "the node was restarted while it ran"
        return EngineContainer(
            status, identity, sizes, Exit(seconds_of(state["StartedAt"]), LOST, "lost"), why
        )
    code = int(state["ExitCode"])
    oom = bool(state.get("OOMKilled"))
    code = 128 - code if 128 < code <= 192 else code
    end = Exit(seconds_of(state["FinishedAt"]), code, "oom" if oom else "")
    limit = found.get("HostConfig", {}).get("Memory") or 0
    why = f"out of memory: its limit is {limit / 2**20:.0f} MiB" if oom else ""
    return EngineContainer(status, identity, sizes, end, why)
