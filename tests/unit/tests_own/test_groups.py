"""Tests that share a server, or a part of the machine, run in one worker, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """\
import os, pathlib, pytest

@pytest.mark.xdist_group("one server")
@pytest.mark.parametrize("number", range(6))
def test_it(number):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def test_one_worker_runs_all_tests_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    words = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "test_it.py"]
    done = subprocess.run(words, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert len(list(tmp_path.glob("gw*"))) == 1
