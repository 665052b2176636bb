"""The last output of removed pods, kept for an hour: many a failed pod is removed before people read why.

It is bounded in number and size. A disk that is full or cannot be read keeps none; no removal waits for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from farmd.agent import log_lines
from farmd.agent.errors import StateUnsaved
from farmd.agent.logs import MAX_LINES
from farmd.agent.shim import LOG, MARKS, trouble
from farmd.agent.state import StateDirectory
from store.keys import valid_instance
from store.ports import Clock

log = structlog.get_logger()

KEPT_SECONDS = 3600.0
KEPT_BYTES = 256 * 1024
KEPT_PODS = 64


class Gone:
    """The folder ``gone`` of an agent's state; each pod has one in it, whose time is that of its removal."""

    def __init__(self, state: StateDirectory, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._folder = state.root / "gone"

    def keep(self, instance: str) -> None:
        """Keep the end of an instance's log, in place of what an earlier pod of that name left."""
        folder, now = self._folder / instance, self._clock.now()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if lines := _last(self._state.logs(instance)):
                self._state.require_room()
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _write(folder, lines)
                os.utime(folder, (now, now))
        except (OSError, StateUnsaved) as error:
            shutil.rmtree(folder, ignore_errors=True)
            why = trouble(error) if isinstance(error, OSError) else error.message
            log.info("gone.not_kept", instance=instance, reason=why)
        self.sweep()

    def logs(self, instance: str) -> tuple[Path, float] | None:
        """The log of a removed pod and the time of its removal; None if none is kept.

        Raises:
            InputInvalid: no instance can have this name.
            DiskSilent: the disk does not answer.
        """
        folder = self._folder / valid_instance(instance)

        def kept() -> list[float]:
            self.sweep()
            return [at for at, path in self._kept() if path == folder]

        found = self._state.disk.call(kept)
        return (folder, found[0]) if found else None

    def sweep(self) -> None:
        """Remove what is too old or too much."""
        now = self._clock.now()
        for place, (at, folder) in enumerate(sorted(self._kept(), reverse=True)):
            # A time in the future comes from a clock that was wrong.
            if place >= KEPT_PODS or abs(now - at) > KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def _kept(self) -> list[tuple[float, Path]]:
        try:
            return [(folder.stat().st_mtime, folder) for folder in self._folder.iterdir()]
        except OSError:
            return []


def _last(logs: Path) -> list[log_lines.LogLine]:
    """The last lines of a log, as many as fit."""
    found = log_lines.chosen(logs, log_lines.Choice(MAX_LINES)) or []
    room, first = KEPT_BYTES, len(found)
    while first and (room := room - len(found[first - 1].text)) >= 0:
        first -= 1
    if first == len(found) > 0:  # one line alone is too long
        return [found[-1]._replace(text=found[-1].text[-KEPT_BYTES:])]
    return found[first:]


def _write(folder: Path, lines: Sequence[log_lines.LogLine]) -> None:
    """Write lines as a shim does: the output, and where another time or another start begins."""
    folder.mkdir(mode=0o700)
    marks, offset, known = list[str](), 0, (-1.0, "")
    for line in lines:
        if (line.at, line.start) != known:
            known = line.at, line.start
            marks.append(f"{offset} {line.at:.3f} {line.start}\n")
        offset += len(line.text)
    (folder / MARKS).write_text("".join(marks), encoding="ascii")
    (folder / LOG).write_bytes(b"".join(line.text for line in lines))
