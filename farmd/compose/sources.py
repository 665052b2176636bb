"""The files that a project is read from, and the place in them of which an error speaks.

Types are checked on the merged document, which knows no lines. So the place is looked up when there is an
error to tell, by the path of the key with which its message begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def copy(self, path: str) -> bytes:
        """The content of a file that travels with its service; of a large one the beginning alone.

        Raises:
            InputInvalid: it cannot be read.
        """

    def below(self, path: str) -> list[str]:
        """The files in a folder and below it, relative to it, in order; one itself is the empty path.

        Raises:
            InputInvalid: there is no such path, or it has something that is neither file nor folder.
        """


MAX_COPY_BYTES = 192 * 1024
"""Of all files that travel with one service: its manifest is one value in Consul."""


Bases = Mapping[str, Sequence[tuple[str, str]]]
"""For services the file and the name of each service that they extend, the nearest one first."""


def placed(
    error: InputInvalid, paths: Sequence[str], files: Files, bases: Bases | None = None
) -> InputInvalid:
    """The same error, which begins with the file that has the key, and with the key's line.

    Of several files it is the last one that has the most of the key's path, those of services that are
    extended before all others; the first one if none has any.
    """
    *parts, _ = error.message.split(": ")
    key = ".".join(part for part in parts[:2] if " " not in part)
    where, least = paths[0], len(key)
    for path, here in [*_extended(key, bases or {}), *((path, key) for path in paths)]:
        depth, line = _found(here, _roots(files.read(path)))
        if depth and len(here) - depth <= least:
            where, least = f"{path}: line {line}", len(here) - depth
    return InputInvalid(f"{where}: {error.message}", **error.fields)


def places(keys: Iterable[str], path: str, text: str) -> list[str]:
    """``<path>: line <n>: <key>`` for keys of a file, or without the line of a key that comes by an alias."""
    lines = {key: line for root in _roots(text) for key, line in _lines(root, "")}
    return [f"{path}: line {lines[key]}: {key}" if key in lines else f"{path}: {key}" for key in keys]


def _lines(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    """The path and the line of each scalar below a node."""
    if isinstance(node, yaml.ScalarNode):
        yield path, node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for at, each in enumerate(node.value):
            yield from _lines(each, f"{path}[{at}]")
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, f"{path}.{key.value}".lstrip("."))


def _extended(key: str, bases: Bases) -> list[tuple[str, str]]:
    """Where a key of a service may stand in those that it extends, the farthest one first."""
    for service, known in bases.items():
        own = f"services.{service}"
        if _begins(key, own):
            return [(path, f"services.{name}{key.removeprefix(own)}") for path, name in reversed(known)]
    return []


def _roots(text: str) -> list[yaml.Node | None]:
    return list(yaml.compose_all(text, documents.Loader))


def _found(path: str, roots: Iterable[yaml.Node | None]) -> tuple[int, int]:
    """How much of a path some documents have, and the line of that."""
    return max((_deepest(path, root) for root in roots), default=(0, 0))


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
        if not path.startswith("[") or not number.isdecimal() or int(number) >= len(node.value):
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
