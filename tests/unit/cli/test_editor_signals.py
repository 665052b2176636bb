"""^C in a person's editor is the editor's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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
