"""Which process is meant: ids are used again, so a pid counts only with its start and the boot (R26)."""

from __future__ import annotations

from pathlib import Path

from farmd.agent.model import Identity

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's id of this boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself contain parentheses and spaces.
    fields = stat.rsplit(b")", 1)[1].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def shim_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded shim is still that very process."""
    return identity.boot == boot and start_ticks(identity.shim) == identity.shim_ticks


def workload_lives(identity: Identity, boot: str) -> bool:
    """Whether the recorded workload is still that very process."""
    return identity.boot == boot and start_ticks(identity.pid) == identity.ticks


def pid_exists(pid: int) -> bool:
    """Whether any live process bears that id here."""
    return pid > 0 and start_ticks(pid) is not None
