"""Output with its time and its start, as shims mark it and agents read it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from unittest.mock import patch

import pytest

from farmd.agent import log_files, logs
from farmd.agent.logs import MAX_TAIL_BYTES, Choice, LogLine, chosen, stamped, stamped_all


def write(folder: Path, start: str, *output: tuple[float, str], max_bytes: int = 10_000) -> None:
    """A start of a workload that writes at these times."""
    log = log_files.Log(str(folder), max_bytes, 3, start)
    with patch.object(log_files.time, "time") as now:
        now.return_value = output[0][0]
        log.begin()
        for at, text in output:
            now.return_value = at
            log.write(text.encode())


def texts(lines: list[LogLine] | None) -> list[str] | None:
    return None if lines is None else [line.text.decode() for line in lines]


def test_each_line_has_its_time_to_a_second_and_its_start(tmp_path: Path) -> None:
    write(tmp_path, "a", (100.0, "one\n"), (100.5, "two\n"), (107.0, "three\nfour\n"))
    assert chosen(tmp_path, Choice(9)) == [
        LogLine(100.0, "a", b"one\n"),
        LogLine(100.0, "a", b"two\n"),
        LogLine(107.0, "a", b"three\n"),
        LogLine(107.0, "a", b"four\n"),
    ]
    assert texts(chosen(tmp_path, Choice(9, since=101.0))) == ["three\n", "four\n"]
    assert texts(chosen(tmp_path, Choice(3))) == ["two\n", "three\n", "four\n"]
    assert chosen(tmp_path, Choice(0)) == []


def test_the_previous_start_is_the_one_before_the_last(tmp_path: Path) -> None:
    write(tmp_path, "a", (100.0, "first\n"))
    assert chosen(tmp_path, Choice(9, previous=True)) is None
    write(tmp_path, "b", (100.2, "second, unfinished"))
    write(tmp_path, "c", (100.4, "third\n"))
    assert texts(chosen(tmp_path, Choice(9, previous=True))) == ["second, unfinished"]
    assert texts(chosen(tmp_path, Choice(9))) == ["first\n", "second, unfinished", "third\n"]


def test_a_start_that_wrote_nothing_is_known(tmp_path: Path) -> None:
    write(tmp_path, "a", (100.0, "first\n"))
    write(tmp_path, "b", (101.0, ""))
    assert texts(chosen(tmp_path, Choice(9, previous=True))) == ["first\n"]
    write(tmp_path, "c", (102.0, ""))
    assert chosen(tmp_path, Choice(9, previous=True)) == []


def test_marks_are_rotated_with_their_files(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path, f"s{number}", (100.0 + number, f"line {number}\n"), max_bytes=16)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if "marks" in name] == [
        name.replace("log", "marks") for name in names if "log" in name
    ]
    found = chosen(tmp_path, Choice(99))
    assert found is not None
    assert [(line.at, line.start, line.text) for line in found] == [
        (100.0 + number, f"s{number}", f"line {number}\n".encode()) for number in range(8)
    ]
    assert texts(chosen(tmp_path, Choice(9, previous=True))) == ["line 6\n"]


@pytest.mark.parametrize("marks", [None, b"", b"7 x y\n\xff\n12"])
def test_output_of_a_shim_without_marks_has_no_time(tmp_path: Path, marks: bytes | None) -> None:
    (tmp_path / log_files.LOG).write_bytes(b"old\n")
    if marks is not None:
        (tmp_path / log_files.MARKS).write_bytes(marks)
    assert chosen(tmp_path, Choice(9)) == [LogLine(0.0, "", b"old\n")]
    assert chosen(tmp_path, Choice(9, since=1.0)) == []
    assert chosen(tmp_path, Choice(9, previous=True)) is None
    assert stamped(0.0, b"old\n") == b"- old\n"
    assert stamped(1_800_000_000.4, b"new\n") == b"2027-01-15T08:00:00Z new\n"


def test_a_file_that_somebody_removed_takes_its_marks_with_it(tmp_path: Path) -> None:
    write(tmp_path, "a", (100.0, "one\n"))
    (tmp_path / log_files.LOG).unlink()
    write(tmp_path, "b", (200.0, "two\n"))
    assert chosen(tmp_path, Choice(9)) == [LogLine(200.0, "b", b"two\n")]


def test_no_more_lines_are_made_than_are_wanted_of_a_log_of_newlines(tmp_path: Path) -> None:
    write(tmp_path, "a", (100.0, "first\n"), max_bytes=10_000_000)
    write(tmp_path, "b", (101.0, "\n" * 9_000_000), max_bytes=10_000_000)
    write(tmp_path, "c", (102.0, "last\n"), max_bytes=10_000_000)
    tracemalloc.start()
    for choice in (Choice(3), Choice(3, since=50.0), Choice(3, previous=True)):
        found = chosen(tmp_path, choice)
        assert found is not None
        assert len(found) == 3
    assert logs.tail(tmp_path, 3) == b"\n\nlast\n"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * MAX_TAIL_BYTES


def test_marks_of_a_log_that_grows_by_bytes_stay_smaller_than_itself_and_are_read_from_their_end(
    tmp_path: Path,
) -> None:
    log = log_files.Log(str(tmp_path), 10_000_000, 3, "a")
    with patch.object(log_files.time, "time") as now:
        for second in range(60_000):
            now.return_value = 1000.0 + second
            log.write(b"x\n")
    assert (tmp_path / log_files.MARKS).stat().st_size < 400_000
    found = chosen(tmp_path, Choice(1))
    assert found is not None
    assert 1000.0 + 60_000 - found[0].at < 10


def test_following_output_gets_the_time_of_its_first_byte_line_by_line() -> None:
    at = stamped(1.0, b"")
    assert stamped_all(1.0, b"a\nb", begins=True) == at + b"a\n" + at + b"b"
    assert stamped_all(1.0, b"c\n\n", begins=False) == b"c\n" + at + b"\n"
