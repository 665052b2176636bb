"""How a run of tests was started does not change what its programs hear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TELL = "import signal, tests.conftest; print(signal.getsignal(signal.SIG{}) is not signal.SIG_IGN)"


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_programs_of_a_run_in_the_background_hear_signals_of_a_terminal(name: str) -> None:
    words = ["sh", "-c", f'trap "" {name}; exec "$@"', "sh", sys.executable, "-c", TELL.format(name)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
