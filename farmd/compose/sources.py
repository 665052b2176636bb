"""The files that a project is read from, and the place in them of which an error speaks.

Types are checked on the merged document, which knows no lines. So the place is looked up when there is an
error to tell, by the path of the key with which its message begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import yaml

from farmd.commands import documents
from store.errors import InputInvalid


class Files(Protocol):
    """Reads the files that a compose file names."""

    def read(self, path: str) -> str:
        """A file's text.

        Raises:
            InputInvalid: it cannot be read.
        """

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""


def placed(error: InputInvalid, paths: Sequence[str], files: Files) -> InputInvalid:
    """The same error, which begins with the file that has the key, and with the key's line.

    Of several files it is the last one that has the most of the key's path; the first one if none has any.
    """
    *parts, _ = error.message.split(": ")
    plain = [part for part in parts[:2] if " " not in part]
    where, best = paths[0], (0, 0)
    for path in paths:
        depth, line = _found(".".join(plain), files.read(path))
        if depth >= max(1, best[0]):
            where, best = f"{path}: line {line}", (depth, line)
    return InputInvalid(f"{where}: {error.message}", **error.fields)


def _found(path: str, text: str) -> tuple[int, int]:
    """How much of a path a text has, and the line of that."""
    found = (0, 0)
    for root in yaml.compose_all(text, documents.Loader):
        found = max(found, _deepest(path, root))
    return found


def _deepest(path: str, root: yaml.Node | None) -> tuple[int, int]:
    node, at, line = root, 0, 0
    while (step := _step(path[at:], node)) is not None:
        length, line, node = step
        at += length
    return at, line


def _step(path: str, node: yaml.Node | None) -> tuple[int, int, yaml.Node] | None:
    """The longest key of a node with which a path begins: its length, its line and its value."""
    if isinstance(node, yaml.SequenceNode):
        number = path.removeprefix("[").partition("]")[0]
        if not path.startswith("[") or not number.isdigit() or int(number) >= len(node.value):
            return None
        entry = node.value[int(number)]
        return len(number) + 2, entry.start_mark.line + 1, entry
    if not isinstance(node, yaml.MappingNode):
        return None
    rest = path.removeprefix(".")
    keys = [(key.value, key, value) for key, value in node.value if _begins(rest, key.value)]
    if not keys:
        lower = [value for key, value in node.value if key.value == "<<"]
        below = [each for value in lower for each in (value.value if value.id == "sequence" else [value])]
        return next(filter(None, (_step(path, each) for each in below)), None)
    name, key, value = max(keys, key=lambda each: len(each[0]))
    return len(path) - len(rest) + len(name), key.start_mark.line + 1, value


def _begins(path: str, key: object) -> bool:
    return isinstance(key, str) and path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "[")
