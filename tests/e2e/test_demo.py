"""``make demo`` plays to its end, leaves nothing, and fails with its reason when a step does."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from farmd.dev import tree
from tests.processes import Program


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("farmd-")]


@pytest.mark.slow
def test_the_demo_plays_to_its_end(tmp_path):
    with Program(folder=tmp_path, module="farmd.dev.demo", TMPDIR=str(tmp_path)) as demo:
        demo.wait_text("once the dead farm's locks are free")
        demo.wait_text("ok: farm-")
        assert demo.ends() == 0, demo.text
    for seen in (
        "ok: hello runs",
        "ok: hello runs five times",
        "ok: its agent started it again",
        "ok: hello runs the second version",
        "ok: nothing is left in the store",
        "workload processes left: 0",
    ):
        assert seen in demo.text
    assert re.search(r"rollout 'hello' was reverted: 5 s .*: node-\d/hello not healthy", demo.text)
    assert re.search(r"ok: farm-[12] owns hello-\d", demo.text)
    assert re.search(r"with 'hello again'\); failed: 0\n", demo.text)
    assert re.search(r"done in \d+ s; processes left: 0", demo.text)
    assert left_over(tmp_path) == []


def test_a_failed_step_ends_it_with_the_reason(tmp_path):
    with Program(folder=tmp_path, module="farmd.dev.demo", TMPDIR=str(tmp_path)) as demo:
        demo.wait_text("ok: hello runs")
        below = tree.descendants(demo.process.pid)
        store = [pid for pid in below if "store.embedded" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(store[0], signal.SIGKILL)
        assert demo.ends() == 1
    assert "FAILED: " in demo.text
    assert "Traceback" not in demo.text
    assert left_over(tmp_path) == []
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
