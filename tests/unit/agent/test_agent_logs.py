"""Reading logs across rotations."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from farmd.agent.logs import follow, tail
from tests.still_clock import StillClock


def lines(first: int, last: int) -> str:
    return "".join(f"line {n}\n" for n in range(first, last + 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "current.log.10").write_text(lines(1, 10))
    (logs / "current.log.2").write_text(lines(11, 20))
    (logs / "current.log.1").write_text(lines(21, 30))
    (logs / "current.log").write_text(lines(31, 35))
    (logs / "current.log.bak").write_text("not ours\n")
    return logs


@pytest.mark.parametrize("count", [0, 1, 5, 6, 15, 35, 1000])
def test_the_last_lines_over_rotated_files_in_order(folder: Path, count: int) -> None:
    expected = lines(1, 35).splitlines(keepends=True)
    assert tail(folder, count).decode() == "".join(expected[-count:] if count else [])


def test_no_log_yet_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path, 10) == b""


def test_a_long_file_is_read_from_its_end(folder: Path) -> None:
    (folder / "current.log").write_text(lines(1, 100_000))
    assert tail(folder, 3).decode() == lines(99_998, 100_000)


def test_an_unfinished_last_line_is_shown(folder: Path) -> None:
    (folder / "current.log").write_text("a\nb\nunfinished")
    assert tail(folder, 2) == b"b\nunfinished"


async def read(pieces: AsyncGenerator[bytes, None]) -> str:
    """What comes until there is nothing new."""
    text = b""
    async for piece in pieces:
        if not piece:
            break
        text += piece
    return text.decode()


async def test_following_misses_nothing_when_the_file_is_rotated(folder: Path) -> None:
    pieces = follow(folder, 2, StillClock())
    assert await read(pieces) == lines(34, 35)
    with (folder / "current.log").open("a") as file:
        file.write("before\n")
        file.flush()
        assert await read(pieces) == "before\n"
        file.write("last words\n")
    (folder / "current.log").rename(folder / "current.log.0")
    (folder / "current.log").write_text("first words\n")
    assert await read(pieces) == "last words\nfirst words\n"
    await pieces.aclose()


async def test_following_waits_for_a_first_log_and_ends_with_the_pod(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    pieces = follow(folder, 10, StillClock())
    assert await read(pieces) == ""
    (folder / "current.log").write_text("hello\n")
    assert await read(pieces) == "hello\n"
    with (folder / "current.log").open("a") as file:
        file.write("last words")
    (folder / "current.log").unlink()
    folder.rmdir()
    assert [piece async for piece in pieces] == [b"last words"]


async def test_following_reads_every_file_that_came_between_two_looks(folder: Path) -> None:
    pieces = follow(folder, 0, StillClock())
    assert await read(pieces) == ""
    for number in (2, 1):
        (folder / f"current.log.{number}").rename(folder / f"current.log.{number + 2}")
    (folder / "current.log").rename(folder / "current.log.2")
    (folder / "current.log.1").write_text(lines(36, 40))
    (folder / "current.log").write_text(lines(41, 45))
    assert await read(pieces) == lines(36, 45)
    for path in folder.iterdir():
        path.unlink()  # all were rotated away
    (folder / "current.log.1").write_text(lines(50, 55))
    (folder / "current.log").write_text(lines(56, 60))
    assert await read(pieces) == lines(50, 60)
    await pieces.aclose()
