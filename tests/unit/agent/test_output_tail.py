"""What people are shown of the end of a failed command's output (R43)."""

from __future__ import annotations

from pathlib import Path

from farmd.agent.log_files import Log
from farmd.agent.stages import TAIL, Tail

SECRET = b"correct-horse-battery-staple-0123456789"


def shown(folder: Path, output: bytes) -> str:
    tail = Tail(Log(str(folder), 10**6, 1, "s1").write, [SECRET])
    tail.write(output)
    return tail.take()


def test_no_part_of_a_secret_is_shown_wherever_the_output_is_cut(tmp_path: Path) -> None:
    parts = {SECRET[at : at + 6].decode() for at in range(len(SECRET) - 5)}
    for more in range(TAIL, TAIL + len(SECRET) + 1):
        # The kept bytes begin within the first one; the others make room when they are replaced.
        text = shown(tmp_path, SECRET + SECRET * 10 + b"x" * (more - 10 * len(SECRET)))
        assert not [each for each in parts if each in text]


def test_the_end_of_a_short_and_of_a_long_output_is_shown(tmp_path: Path) -> None:
    assert shown(tmp_path, b"a " + SECRET + b" b\n") == "a *** b"
    assert shown(tmp_path, b"x" * 5000 + b"y\n") == "x" * (TAIL - 2) + "y"
