"""A command of a check that no signal ends, as on a disk that hangs, makes its pod ill and no check late."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from farmd.agent.model import Identity
from farmd.agent.runtimes import shims
from farmd.agent.runtimes.process import Processes
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from farmd.agent.watcher import Checker, Target
from store.manifests import HealthCheck, Manifest
from tests.fleet import eventually, in_time
from tests.still_clock import StillClock


async def test_a_command_that_does_not_end_when_killed_fails_its_check_and_is_not_started_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, pids = StateDirectory(tmp_path), tmp_path / "pids"
    state.instances.mkdir()
    state.create("web")
    command = ["sh", "-c", f"echo $$ >> {pids}; exec sleep 1000"]
    check = HealthCheck(type="command", command=command, interval=1, timeout=0.1)
    identity = Identity(instance="web", manifest="m", start="s1", started=0.0)
    processes = Processes(state, "n1", {"PATH": os.environ["PATH"]}, StillClock(), Users(share=True))
    target = Target({}, partial(processes.check, identity, Manifest(id="web", command=["true"])))
    killed: list[int] = []
    monkeypatch.setattr(shims, "END_SECONDS", 0.01)
    with monkeypatch.context() as held:
        held.setattr(shims.os, "killpg", lambda pid, _: killed.append(pid))
        first = await in_time(Checker("127.0.0.1").check(check, target))
        second = await in_time(Checker("127.0.0.1").check(check, target))
    assert [first.result, second.result] == ["timeout", "timeout"]
    assert "has not ended" in second.reason
    assert pids.read_text().split() == [str(pid) for pid in killed]
    os.killpg(killed[0], signal.SIGKILL)
    well = HealthCheck(type="command", command=["true"], interval=1, timeout=5)

    async def passes() -> bool:
        return (await Checker("127.0.0.1").check(well, target)).result == "passing"

    await eventually(passes)
