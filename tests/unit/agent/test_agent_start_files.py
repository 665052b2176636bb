"""R29: what a start wrote of its end is read as its own word, and as nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farmd.agent import start_files
from store.containers import Container
from store.manifests import Manifest, Restart

JOB = Manifest(id="job", command=["x"], restart=Restart(policy="never"))


def result(folder: Path, start: str) -> Path:
    return start_files.paths(folder, start)["FARMD_RESULT"]


def test_only_pods_that_may_end_have_a_result(tmp_path: Path) -> None:
    start_files.lay_out(tmp_path / "starts", "s1", Manifest(id="web", command=["x"]), None)
    assert start_files.paths(tmp_path / "starts", "s1") == {}
    assert start_files.message(tmp_path / "starts", "s1") == ""


def test_a_start_never_speaks_for_another_one(tmp_path: Path) -> None:
    for start in ("s1", "s2"):
        start_files.lay_out(tmp_path, start, JOB, None)
        assert start_files.message(tmp_path, start) == ""
        result(tmp_path, start).write_text(start)
    assert [start_files.message(tmp_path, start) for start in ("s1", "s2")] == ["s1", "s2"]
    start_files.keep_only(tmp_path, "s2")
    assert [path.name for path in tmp_path.iterdir()] == ["s2"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"", ""),
        (b" loss 0.3\n", "loss 0.3"),
        (b"x" * 5000 + b"end", "x" * 1021 + "end"),
        ("é".encode() * 1000 + b"!", "é" * 511 + "!"),
        (b"\xff\xfeok", "ok"),
    ],
)
def test_the_end_of_a_long_result_is_told(tmp_path: Path, written: bytes, told: str) -> None:
    start_files.lay_out(tmp_path, "s1", JOB, None)
    result(tmp_path, "s1").write_bytes(written)
    assert start_files.message(tmp_path, "s1") == told


def test_what_is_no_file_any_more_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    for name, make in (("s1", lambda path: path.symlink_to(secret)), ("s2", os.mkfifo)):
        start_files.lay_out(tmp_path, name, JOB, None)
        path = result(tmp_path, name)
        path.unlink()
        make(path)
        assert start_files.message(tmp_path, name) == ""


def test_nobody_else_on_the_node_reaches_the_result_of_a_container(tmp_path: Path) -> None:
    container = Manifest(id="job", runtime="container", container=Container(image="a"), restart=JOB.restart)
    start_files.lay_out(tmp_path, "s1", container, None)
    path = result(tmp_path, "s1")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o666, 0o700)
