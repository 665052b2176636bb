"""Parses files of people: YAML or JSON text → plain documents, before any field is checked.

Refuses what YAML allows but a file must not have: custom tags, aliases that expand to huge documents,
duplicate keys, input over the size limit. Every refusal is one line that names the file. Scalars are read as
in YAML 1.2 (``farmd.commands.scalars``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import yaml

from farmd.commands import scalars
from store.errors import InputInvalid

if TYPE_CHECKING:
    from yaml import SafeLoader
else:  # libyaml's parser, many times faster, where PyYAML was built with it
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 8 * 1024 * 1024
MAX_NODES = 500_000
MAX_DEPTH = 64
MAX_DOCUMENTS = 1000
MAX_DIGITS = 100


def parse(
    text: str, source: str, loader: type[Loader] | None = None, nodes: int = MAX_NODES
) -> list[tuple[str, Any]]:
    """All documents of one file: (source, parsed value). Empty documents are dropped.

    ``loader`` knows more tags; ``nodes``: how many values YAML may have.

    Raises:
        InputInvalid: too large, not YAML or JSON, a duplicate key, too many aliases, or no document.
    """
    values = [value for _, value in _values(text, source, loader or Loader, nodes)]
    if not values:
        raise InputInvalid(f"{source}: found no document, expected at least one", source=source)
    if len(values) == 1:
        return [(source, values[0])]
    return [(f"{source} (document {number})", value) for number, value in enumerate(values, 1)]


def located(text: str, source: str) -> list[tuple[str, Any]]:
    """All documents of one file, each with the line where it begins: (``<source>:<line>``, parsed value).

    Raises:
        InputInvalid: as ``parse``, but a file without a document has none.
    """
    return [(f"{source}:{line}", value) for line, value in _values(text, source, Loader, MAX_NODES)]


def _values(text: str, source: str, loader: type[Loader], nodes: int) -> list[tuple[int, Any]]:
    """The documents of one file that are not empty, each with the number of its first line."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InputInvalid(f"{source}: found {size} bytes, expected at most {MAX_BYTES}", source=source)
    found = [(1, _json(text, source))] if source.endswith(".json") else _yaml(text, source, loader, nodes)
    found = [(line, value) for line, value in found if value is not None]
    if len(found) > MAX_DOCUMENTS:
        raise InputInvalid(
            f"{source}: found {len(found)} documents, expected at most {MAX_DOCUMENTS}", source=source
        )
    return found


def _json(text: str, source: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputInvalid(f"{source}: {twice}: found twice, expected once", source=source)
        return found

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=lambda digits: _integer(digits, source))
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"{source}: not JSON: {_one_line(error)}", source=source) from error


def _yaml(text: str, source: str, loader: type[Loader], nodes: int) -> list[tuple[int, Any]]:
    try:
        _check_size(text, nodes)
        return list(_loaded(loader(text)))
    except InputInvalid as error:
        raise InputInvalid(f"{source}: {error.message}", source=source) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context
        if mark and text[mark.index : mark.index + 1] == "\t":
            problem = "found a tab, expected spaces"
        raise InputInvalid(f"{source}: not YAML: {problem}{where}", source=source) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputInvalid(f"{source}: not YAML: {_one_line(error)}", source=source) from error


def _loaded(loader: Loader) -> Iterator[tuple[int, Any]]:
    """The documents of a stream, each with the number of its first line."""
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                yield node.start_mark.line + 1, loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(text: str, most: int) -> None:
    """Count the nodes of the document with all aliases expanded, without expanding them."""

    def refuse(found: str, expected: str) -> InputInvalid:
        return InputInvalid(f"found {found}, expected {expected}")

    anchors: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, SafeLoader):
        anchor, size = None, 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                line = f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
                marked = f"a value above it in the same document, marked &{event.anchor}"
                raise InputInvalid(f"{line}found the alias *{event.anchor}, expected {marked}")
            size = anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
        elif isinstance(event, yaml.DocumentStartEvent):
            anchors.clear()
        if anchor:
            anchors[anchor] = size
        parent, total = open_nodes[-1]
        open_nodes[-1] = (parent, total + size)
        if total + size > most:
            raise refuse(f"more than {most} values with aliases written out", "fewer")
        if len(open_nodes) > MAX_DEPTH:
            raise refuse(f"more than {MAX_DEPTH} levels", "fewer")


class Loader(SafeLoader):
    """The safe loader, which reads scalars as in YAML 1.2 and refuses a duplicate key in a mapping."""

    yaml_implicit_resolvers = scalars.RESOLVERS

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = f"{key_node.tag} {key_node.value}"
            if isinstance(key_node, yaml.ScalarNode) and key in seen and key_node.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key_node.value}: found twice, expected once", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        return _integer(node.value, f"line {node.start_mark.line + 1}", scalars.integer)


Loader.add_constructor(scalars.INTEGER, Loader.construct_integer)


def _integer(digits: str, where: str, convert: Callable[[str], int] = int) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputInvalid(f"{where}: found a number of {len(digits)} digits, expected at most {MAX_DIGITS}")
    return convert(digits)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
