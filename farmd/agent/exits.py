"""Reads what the shims of an instance recorded of its starts: how far the last one is, and how they ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from farmd.agent.files import write_atomically
from farmd.agent.model import Identity
from farmd.agent.shim import EXITS
from farmd.agent.stages import STAGES
from store import codec
from store.errors import RecordInvalid
from store.manifests import AfterStop, Init, Manifest
from store.reality import SidecarStatus, ending

LINES_KEPT = 20


class Recorded(msgspec.Struct, frozen=True):
    """The end of one start; ``memory`` is the limit in bytes that it went over. ``cut_off``: its lease was
    over (R27)."""

    start: str
    at: float
    code: int
    memory: int = 0
    cut_off: bool = False

    @property
    def why(self) -> str:
        """What its code does not tell, for people."""
        return f"out of memory: its limit is {self.memory / 2**20:.0f} MiB" if self.memory else ""


class Failure(msgspec.Struct, frozen=True):
    """A command that failed, with the end of its output. ``why`` says what its ``code`` does not."""

    stage: Literal["init", "command", "after_stop"]
    at: int
    code: int
    why: str = ""
    output: str = ""


class SidecarState(msgspec.Struct, frozen=True):
    """A program beside the workload: its process and when that began, or how it ended (pid 0) and when."""

    pid: int = 0
    ticks: int = 0
    since: float = 0.0
    restarts: int = 0
    code: int = 0
    why: str = ""
    oom: bool = False

    @property
    def status(self) -> SidecarStatus:
        """What people are told of it."""
        how = self.why or (f"out of memory, {ending(self.code)}" if self.oom else ending(self.code))
        return SidecarStatus(self.pid > 0, self.since, self.restarts, "" if self.pid else how)


class Stages(msgspec.Struct, frozen=True):
    """How far a start is (R43): which command runs of ``init`` or ``after_stop``, and since when the workload
    itself runs. ``process`` is the command that runs after it: its id, and when it started, in ticks.
    """

    start: str
    stage: Literal["init", "running", "sidecars", "after_stop", "over"] = "running"
    at: int = 0
    attempt: int = 0
    begun: float = 0.0
    failures: list[Failure] = []
    process: list[int] = []
    sidecars: dict[str, SidecarState] = {}

    @property
    def beside(self) -> dict[str, SidecarStatus]:
        """What people are told of the programs beside the workload."""
        return {name: each.status for name, each in self.sidecars.items()}

    def others(self, identity: Identity) -> list[Identity]:
        """All that runs beside the workload or after it, each as if it were that."""
        found = [(each.pid, each.ticks) for each in self.sidecars.values() if each.pid]
        found += [(self.process[0], self.process[1])] if self.process else []
        return [msgspec.structs.replace(identity, pid=pid, ticks=ticks) for pid, ticks in found]

    def doing(self, manifest: Manifest | None) -> str:
        """What runs in place of the workload, for people; empty if it runs itself."""
        if self.stage not in ("init", "after_stop"):
            return ""
        if manifest is not None and self.stage == "init" and not manifest.init:
            return "sidecars"
        retries = manifest.init[self.at].retries if manifest is not None and self.stage == "init" else 0
        tries = f", try {self.attempt + 1} of {retries + 1}" if retries else ""
        return f"{_named(self.stage, self.at, manifest)}{tries}"

    def told(self, manifest: Manifest | None) -> tuple[str, str]:
        """What failed before the workload and after it, for people, with the end of the output."""
        before = [_told(each, manifest) for each in self.failures if each.stage != "after_stop"]
        after = [_told(each, manifest) for each in self.failures if each.stage == "after_stop"]
        return "; ".join(before), "; ".join(after)


def _named(stage: str, at: int, manifest: Manifest | None) -> str:
    steps: Sequence[Init | AfterStop] = getattr(manifest, stage, ())
    return f"{stage}[{at}] ({shlex.join(steps[at].command)[:200]})" if at < len(steps) else f"{stage}[{at}]"


def _told(failure: Failure, manifest: Manifest | None) -> str:
    what = "" if failure.stage == "command" else f"{_named(failure.stage, failure.at, manifest)}: "
    retries = manifest.init[failure.at].retries if manifest is not None and failure.stage == "init" else 0
    tries = f" at the last of {retries + 1} tries" if retries else ""
    output = " | ".join(failure.output.splitlines())
    return f"{what}{failure.why or ending(failure.code)}{tries}{': ' if output else ''}{output}"


def stages(directory: Path) -> Stages | None:
    """How far the last start is that has stages; None where there was none."""
    try:
        return codec.decode(Stages, (directory / STAGES).read_bytes(), STAGES)
    except (FileNotFoundError, RecordInvalid):
        return None


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
