"""A workload that became another user by itself, under an agent that is not root and may not signal it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.model import Identity
from farmd.agent.runtimes import shims
from farmd.agent.runtimes.process import Processes
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.presence import boot_id, start_ticks
from tests.still_clock import StillClock


async def test_it_is_told_why_it_is_not_stopped_and_its_end_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    state = StateDirectory(tmp_path)
    state.instances.mkdir()
    state.create("web")
    processes = Processes(state, "n1", {}, StillClock(), Users(share=True))
    me = os.getpid()
    live = Identity(
        boot=boot_id(),
        pid=me,
        ticks=start_ticks(me) or 0,
        instance="web",
        manifest="m",
        start="s",
        started=0.0,
    )
    monkeypatch.setattr(shims.os, "killpg", refuse)
    with pytest.raises(
        StartFailed, match=f"process {me} belongs to another user: uid {os.geteuid()} may not"
    ):
        await processes.signal(live, signal.SIGTERM)
    ended = processes.end("web", "s", live)
    assert ended is not None
    assert ended.why == "its end was not recorded, because its shim was lost"
