"""Whatever a person mistypes, the answer is one line that names it, and a hint at most."""

from __future__ import annotations

import io
import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from farmd.cli.main import run
from tests.unit.cli.bad_inputs import DOCUMENTS, FIELDS, LINES, TEXTS, USAGE, VERBS, changed


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where nothing is configured, and no Consul answers."""
    for name in [name for name in os.environ if name.startswith(("CONSUL_", "FARMCTL_", "FARMD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CONSUL_HTTP_ADDR", "127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")


def refused(arguments: list[str], word: str, code: int) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        found = run(arguments)
    first, *more = err.getvalue().splitlines()
    assert found == code, err.getvalue()
    assert (first.startswith("farmctl: "), [line for line in more if not line.startswith("hint: ")]) == (
        True,
        [],
    )
    assert len(more) <= 1
    assert word in err.getvalue()
    assert out.getvalue() == ""


@pytest.mark.parametrize(("kind", "path", "value", "word"), FIELDS, ids=str)
def test_a_field_that_does_not_fit_is_named(
    tmp_path: Path, kind: str, path: str, value: Any, word: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(changed(DOCUMENTS[kind], path, value), "utf-8")
    refused([*VERBS[kind], "-f", str(file)], word, USAGE)


@pytest.mark.parametrize(("text", "word"), TEXTS, ids=[str(number) for number in range(len(TEXTS))])
def test_a_file_that_is_no_document_is_named(tmp_path: Path, text: bytes, word: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(text)
    refused(["rc", "create", "-f", str(file)], word, USAGE)


@pytest.mark.parametrize(("line", "word", "code"), LINES, ids=[line for line, _, _ in LINES])
def test_a_command_line_that_cannot_work_is_one_line(line: str, word: str, code: int) -> None:
    refused(shlex.split(line), word, code)


def test_there_are_two_hundred_of_them() -> None:
    assert len(FIELDS) + len(TEXTS) + len(LINES) >= 250
