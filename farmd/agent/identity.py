"""Whether a recorded process still lives: pids are reused, so boot id and start time count too (R26)."""

from __future__ import annotations

from farmd.agent.model import Identity
from store.presence import start_ticks


def shim_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded shim is still that very process."""
    return identity.boot == boot and start_ticks(identity.shim) == identity.shim_ticks


def workload_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded workload is still that very process."""
    return identity.boot == boot and start_ticks(identity.pid) == identity.ticks
