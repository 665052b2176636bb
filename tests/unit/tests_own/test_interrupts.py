"""How a run of tests was started does not change what its programs hear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TELL = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_programs_of_a_run_in_the_background_hear_an_interrupt() -> None:
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", TELL]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
