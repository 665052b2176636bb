"""Disk calls with a deadline: a disk that is silent costs the agent one wait, and keeps the order (R26)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farmd.agent import disk as disks
from farmd.agent import files
from farmd.agent.disk import Disk, DiskSilent
from farmd.agent.errors import StartFailed, StateUnsaved
from farmd.agent.logs import Gone
from farmd.agent.model import Record
from farmd.agent.runtimes.runtime import Runtimes
from farmd.agent.state import AgentIdentity, StateDirectory
from store.containers import Mount
from store.manifests import Manifest
from tests.still_clock import StillClock
from tests.unit.agent.test_agent_shim import until


class Hanging:
    """Holds up calls of ``write_atomically`` until it is released."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self.free = threading.Event()
        self.free.set()

    def __call__(self, path: Path, data: bytes, *, sync: bool) -> None:
        self.free.wait()
        self._write(path, data, sync=sync)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    made = Hanging(files.write_atomically)
    monkeypatch.setattr(files, "write_atomically", made)
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.2)
    yield made
    made.free.set()


def test_a_call_returns_and_raises_what_the_work_does() -> None:
    disk = Disk()
    assert disk.call(lambda: disk.call(lambda: 7)) == 7
    with pytest.raises(FileNotFoundError):
        disk.call(Path("/nonexistent").read_bytes)
    with pytest.raises(TimeoutError, match="of its own"):
        disk.call(lambda: (_ for _ in ()).throw(TimeoutError("of its own")))
    assert not disk.silent


def test_r26_of_a_silent_disk_all_that_was_wanted_is_written_in_the_end(
    tmp_path: Path, hanging: Hanging
) -> None:
    state = StateDirectory(tmp_path)
    old, new = Record(instance="web", manifest="a" * 64), Record(instance="web", manifest="b" * 64)
    with state.locked("n1"):
        state.save(old)
        hanging.free.clear()
        with pytest.raises(StateUnsaved, match="the disk does not answer"):
            state.save_first(new)  # the thread will write it, though nothing is started for it
        assert state.closed == "the disk does not answer"
        state.save_identity(AgentIdentity("n1", "c1", "s1"))
        with pytest.raises(DiskSilent):
            state.load("web")
        assert set(state.unsaved_instances().values()) == {"the disk does not answer"}
        hanging.free.set()
        until(lambda: not state.disk.silent)
        state.restore()
        assert (state.unsaved, state.closed, state.load("web")) == (False, "", old)
    assert StateDirectory(tmp_path)._identity("n1").session == "s1"


def test_r26_what_was_given_up_before_its_turn_is_never_done() -> None:
    disk, free, done = Disk(), threading.Event(), list[int]()
    disk.begin(free.wait)
    given_up = disk.begin(lambda: done.append(1))
    given_up.cancel()
    free.set()
    disk.call(lambda: done.append(2))
    assert done == [2]


def test_r26_a_mount_from_a_silent_disk_is_refused_and_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.2)
    free = threading.Event()

    class Judge:
        name = "systemd"

        def preflight(self, manifest: Manifest, *, kept: bool = False) -> None:
            assert not manifest.mounts or free.wait(20)

    runtimes: Any = Runtimes(Judge())  # type: ignore[arg-type]
    mount = Mount(type="bind", source="/far", target="/near")
    far = Manifest(id="far", runtime="systemd", command=["x"], mounts=[mount])
    for _ in range(2):
        with pytest.raises(StartFailed, match="mounts: the disk does not answer"):
            runtimes.preflight(far)
        runtimes.preflight(Manifest(id="near", runtime="systemd", command=["x"]))
    free.set()
    until(lambda: not runtimes._elsewhere.silent)
    runtimes.preflight(far)


def test_r26_who_asks_for_the_log_of_a_removed_pod_waits_for_no_silent_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Gone(StateDirectory(tmp_path), StillClock())
    assert gone.logs("web") is None
    monkeypatch.setattr(Disk, "silent", True)
    with pytest.raises(DiskSilent):
        gone.logs("web")
