"""The search for a bare command happens as the workload's user, who may not be able to read this Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farmd.agent import become

# Nothing can be imported any more, as where Python's library lies below /root and the user is another one.
CHILD = """
import marshal, os, sys
sys.path.insert(0, {folder!r})
import become
spec = dict(
    default_signals=[], limits=[], user=None, cwd="/", argv=[{command!r}, "-c", "echo ran"], env={env!r},
)
sys.path.clear()
sys.path_importer_cache.clear()
sys.meta_path.clear()
become.be_no_dearer_than_others = lambda: None
become.become(spec, os.dup(2))
"""


def run(command: str, env: dict[str, str]) -> tuple[str, str]:
    folder = str(Path(become.__file__).parent)
    code = CHILD.format(folder=folder, command=command, env=env)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize(
    ("command", "path"),
    [("sh", "/nowhere:/bin:/usr/bin"), ("/bin/sh", ""), ("sh", "/etc/passwd:/usr/bin:/bin")],
    ids=["searched", "absolute", "no-folder"],
)
def test_a_command_is_found_without_any_module_of_python(command: str, path: str) -> None:
    assert run(command, {"PATH": path}) == ("ran", "")


def test_a_name_as_long_as_a_manifest_is_told_in_short() -> None:
    _, why = run("/" + "x" * 100_000, {})
    assert why == f"command /{'x' * 199}…: File name too long"


def test_a_command_that_is_nowhere_says_so() -> None:
    assert run("nosuchprogram", {"PATH": "/bin"}) == ("", "command nosuchprogram: No such file or directory")


def test_a_program_that_may_not_run_is_said_though_later_folders_lack_it(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("not to run")
    told = run("tool", {"PATH": f"{tmp_path}:/bin"})
    assert told == ("", "command tool: Permission denied")
