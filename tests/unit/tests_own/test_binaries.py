"""Programs for tests: from PATH, else the cache, else fetched; else one line says what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import binaries, debian


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No program on PATH, an empty cache."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(debian, "CACHE", tmp_path)
    monkeypatch.setattr(debian, "codename", lambda: "bookworm")
    monkeypatch.setattr(binaries, "FOLDER", tmp_path / "bin")
    return tmp_path / "bin"


def packed(exit_code: int, asked: list[tuple[Sequence[str], str]]):
    """A package source whose programs end with that code."""

    def unpack(packages: Sequence[str], suite: str, into: Path) -> None:
        asked.append((list(packages), suite))
        for each in binaries.PACKAGED.values():
            program = into / each.path
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\nexit {exit_code}\n")

    return unpack


def test_a_program_on_path_is_taken_as_it_is(monkeypatch, bare):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/opt/{name}" if path is None else None)
    assert binaries.binary("nginx") == Path("/opt/nginx")


def test_a_missing_program_is_unpacked_once_with_all_others_of_its_package(monkeypatch, bare):
    asked: list[tuple[Sequence[str], str]] = []
    monkeypatch.setattr(debian, "unpack", packed(0, asked))
    assert binaries.binary("prometheus") == bare / "prometheus"
    assert binaries.binary("promtool") == bare / "promtool"
    assert asked == [(["prometheus"], "bookworm")]


def test_a_program_that_does_not_run_is_not_kept(monkeypatch, bare):
    monkeypatch.setattr(debian, "unpack", packed(1, []))
    with pytest.raises(binaries.NotToBeHad, match=r"^no nginx for the tests: put .*does not run.*$"):
        binaries.binary("nginx")
    assert list(bare.iterdir()) == []


def test_what_cannot_be_had_is_one_line_that_says_how_to_get_it(monkeypatch, bare, capsys):
    def unpack(packages: Sequence[str], suite: str, into: Path) -> None:
        raise debian.CannotFetch("apt's configuration names no mirror that ends in /debian")

    monkeypatch.setattr(debian, "unpack", unpack)
    assert binaries._main(["nginx"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("no nginx for the tests: put `nginx` on PATH or at ")
    assert "no mirror" in told
