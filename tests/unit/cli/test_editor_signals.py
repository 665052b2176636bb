"""^C in a person's editor is the editor's, and at a text that a person types it is farmctl's at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from farmd.cli.noun_edit import text_of
from farmd.cli.noun_editor import _written


def test_c_in_the_editor_neither_kills_it_nor_ends_the_command_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, file = tmp_path / "editor", tmp_path / "file"
    program.write_text('#!/bin/sh\nkill -INT $PPID; kill -INT $PPID\necho "by a person" >> "$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(program))

    async def edit() -> str:
        written = _written(file, "text\n")
        await asyncio.sleep(0)
        return written

    assert asyncio.run(edit()) == "text\nby a person\n"


def test_c_while_farmctl_reads_what_a_person_types_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed:
        def read(self, _: int) -> bytes:
            os.kill(os.getpid(), signal.SIGINT)
            return b"more"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Typed()))

    async def read() -> str:
        try:
            return text_of("-")
        except KeyboardInterrupt:
            return "ended"

    assert asyncio.run(read()) == "ended"
