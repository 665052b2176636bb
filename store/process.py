"""The identity of a process: boot id, process id and start time, because process ids are used again."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this machine's present boot; empty if the kernel does not tell."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone, hidden or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process name in parentheses may contain parentheses and spaces.
    fields = stat.rsplit(b")", 1)[1].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])
