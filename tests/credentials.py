"""What may stand where a credential's file should be."""

from __future__ import annotations

import os
from pathlib import Path

CONTENTS = {
    "empty": b"",
    "blank": b" \n",
    "second-line": b"s3cret\nanother\n",
    "control-character": b"s3cret\x00",
    "binary": bytes(range(256)),
    "endless": b"x" * (1 << 21),
}
BAD = [*CONTENTS, "missing", "folder", "pipe"]


def spoil(path: Path, how: str) -> None:
    """Replace a file by something that is no token and no certificate."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how != "missing":
        path.write_bytes(CONTENTS[how])


def mend(path: Path, content: str | bytes) -> None:
    """Put a good file there, by rename as a rotation does."""
    spoil(path, "missing")
    beside = path.with_name("beside")
    beside.write_bytes(content.encode() if isinstance(content, str) else content)
    beside.replace(path)
