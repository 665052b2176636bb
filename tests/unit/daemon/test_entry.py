"""The console scripts while they import their modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The first import of click sends the signal that ^C would, as the entry point of the script is run.
INTERRUPTED_IMPORT = """
import os, signal, sys
from importlib.metadata import entry_points

class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop(1)))
sys.meta_path.insert(0, Interrupt())
(script,) = entry_points(group="console_scripts", name=sys.argv.pop(1))
sys.argv = [script.name, "--version"]
sys.exit(script.load()())
"""


def interrupted(name: str, handler: str = "default_int_handler") -> subprocess.CompletedProcess[str]:
    """The script, interrupted while it imports; ``handler``: what the process has for the signal before."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, handler, name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["farmctl", "farmd"])
def test_an_interrupt_while_modules_are_imported_ends_with_130_and_one_line(name: str) -> None:
    ended = interrupted(name)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"{name}: interrupted\n")


@pytest.mark.parametrize("name", ["farmctl", "farmd"])
def test_an_interrupt_that_the_shell_has_ignored_stays_ignored(name: str) -> None:
    ended = interrupted(name, "SIG_IGN")
    assert ended.returncode == 0
    assert ended.stdout.startswith(name)
