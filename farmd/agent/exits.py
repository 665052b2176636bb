"""Reads the exits of an instance's starts, which its shims recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from farmd.agent.files import write_atomically
from farmd.agent.shim import EXITS
from store import codec
from store.errors import RecordInvalid

LINES_KEPT = 20


class Recorded(msgspec.Struct, frozen=True):
    """The end of one start; ``memory`` is the limit in bytes that it went over. ``cut_off``: its lease was
    over (R27)."""

    start: str
    at: float
    code: int
    memory: int = 0
    cut_off: bool = False


def read(directory: Path) -> dict[str, Recorded]:
    """Recorded exits by the id of their start; an incomplete line (after a crash) is left out."""
    found = {}
    for line in _lines(directory):
        try:
            end = codec.decode(Recorded, line, EXITS)
        except RecordInvalid:
            continue
        found[end.start] = end
    return found


def trim(directory: Path) -> None:
    """Keep the last few exits; call it only while no shim runs."""
    lines = _lines(directory)
    if len(lines) > LINES_KEPT * 2:
        write_atomically(directory / EXITS, b"\n".join(lines[-LINES_KEPT:]) + b"\n", sync=True)


def _lines(directory: Path) -> list[bytes]:
    try:
        lines = (directory / EXITS).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    # A shim reserves a blank line for the exit to come.
    return [line for line in lines if line.strip()]
