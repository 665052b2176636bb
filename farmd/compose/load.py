"""Compose files → one document: read, interpolated, extended, merged, judged, written out.

The order is compose's: each file is interpolated and its ``extends`` are resolved before the next file is
laid over it. Files come through ``Files``, so that loading is the same for a disk and for a test.
"""

from __future__ import annotations

import copy
import os.path
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

import yaml

from farmd.commands import documents, scalars
from farmd.compose.interpolation import Interpolation, warnings
from farmd.compose.merge import Override, Reset, long, merged, normal, settled
from farmd.compose.verdicts import judge
from store.errors import InputInvalid
from store.mistakes import nearest, shown

# The files that a project is read from, and the place in them of which an error speaks.
#
# Types are checked on the merged document, which knows no lines. So the place is looked up when there is an
# error to tell, by the path of the key with which its message begins.


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
    """The places of a service's key in the services that it extends, the farthest first."""
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


Document = dict[str, Any]
PROJECT_NAME = "COMPOSE_PROJECT_NAME"
_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
LONGEST_CHAIN = 64
"""How many services may extend one another in a row."""
MAX_NODES = 50_000
MAX_SERVICES = 1000
"""Of one file: those of all profiles, of which one deployment takes the active ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One document for all files, and what people should know of it. ``folder``: of the first file.
    ``bases``: what its services extend. ``project`` is the project's name, and ``env`` the caller's variables
    with those that Compose itself sets.
    """

    document: Document
    folder: str
    bases: Bases
    project: str
    env: Mapping[str, str]
    warnings: tuple[str, ...] = ()


class _Loader(documents.Loader):
    """The house's YAML with the two tags of compose. A number with a leading zero stays text: ``mode: 0440``
    is octal, and what else is written so is no number to those who write it."""

    def construct_integer(self, node: yaml.ScalarNode) -> Any:
        """A whole number, or the text that it was written as."""
        zeros = node.value.startswith("0") and node.value.isdigit() and len(node.value) > 1
        return node.value if zeros else super().construct_integer(node)

    def construct_reset(self, node: yaml.Node) -> Reset:
        """``!reset``, whatever stands behind it."""
        del node
        return Reset()

    def construct_override(self, node: yaml.Node) -> Override:
        """``!override`` and the value behind it."""
        plain = copy.copy(node)
        implicit = (True, False) if isinstance(node, yaml.ScalarNode) else True
        plain.tag = self.resolve(type(node), getattr(node, "value", None), implicit)  # type: ignore[no-untyped-call]
        return Override(self.construct_object(plain, deep=True))


_Loader.add_constructor(scalars.INTEGER, _Loader.construct_integer)
_Loader.add_constructor("!reset", _Loader.construct_reset)
_Loader.add_constructor("!override", _Loader.construct_override)


@dataclass(slots=True)
class _Loading:
    """One load, with what it has read so far. ``unset``: variables without a value, with their places."""

    files: Files
    env: Mapping[str, str]
    parsed: dict[str, list[Document]] = field(default_factory=dict)
    read: dict[str, Document] = field(default_factory=dict)
    bases: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    unset: dict[str, str] = field(default_factory=dict)

    def document(self, path: str) -> Document:
        """One file, interpolated, with its services extended."""
        found = self.raw(path)
        if services := _services(found):
            found = {**found, "services": {name: self.extended(path, name, ()) for name in services}}
        return found

    def raw(self, path: str) -> Document:
        """One file, interpolated."""
        if path not in self.read:
            interpolation = Interpolation(self.env)
            result: Any = {}
            for each in self.plain(path):
                with self._placing(path):
                    result = merged(result, interpolation.document(each, ""))
            if unset := interpolation.unset:
                found = zip(unset, places(unset.values(), path, self.files.read(path)), strict=True)
                self.unset = dict(found) | self.unset
            self.read[path] = result
        return self.read[path]

    def plain(self, path: str) -> list[Document]:
        """The documents of one file as they are written."""
        if path not in self.parsed:
            found = [each for _, each in documents.parse(self.files.read(path), path, _Loader, MAX_NODES)]
            with self._placing(path):
                for each in found:
                    _check_mapping(each)
                    if len(_services(each)) > MAX_SERVICES:
                        many = f"services: found {len(_services(each))} of them"
                        raise InputInvalid(f"{many}, expected at most {MAX_SERVICES}")
                    _check_keys(each)
            self.parsed[path] = found
        return self.parsed[path]

    def name(self, path: str) -> str:
        """The project's name as one file gives it; empty: it gives none."""
        names = [each["name"] for each in self.plain(path) if each.get("name")]
        with self._placing(path):
            found = Interpolation(self.env).document(names[-1], "name") if names else ""
        return found if isinstance(found, str) else ""

    def extended(self, path: str, name: str, way: tuple[tuple[str, str], ...]) -> Any:
        """A service of a file with what it extends under it."""
        service = _services(self.raw(path)).get(name)
        if not isinstance(service, dict) or "extends" not in service:
            return service
        way = (*way, (path, name))
        with self._placing(path):
            file, base_name = _base(service["extends"], way)
            source = os.path.normpath(PurePath(path).parent / file) if file else path
            _check_way(way, (source, base_name))
            if file and not self.files.exists(source):
                raise InputInvalid(f"services.{name}.extends: found no file {source}")
        known = _services(self.raw(source))
        with self._placing(path):
            if base_name not in known:
                near = nearest(base_name, sorted(known)) if known else ", which has no services"
                raise InputInvalid(f"services.{name}.extends: found service {base_name!r} of {source}{near}")
        self.bases.setdefault(way[0][1], []).append((source, base_name))
        base = self.extended(source, base_name, way)
        if file:
            base = _moved(base, PurePath(file).parent)
        own = {key: value for key, value in service.items() if key != "extends"}
        return merged(base, own, ("services", name))

    @contextmanager
    def _placing(self, path: str) -> Iterator[None]:
        """Let errors name the line of their key in a file."""
        try:
            yield
        except InputInvalid as error:
            raise placed(error, [path], self.files) from error


def load(paths: Sequence[str], files: Files, env: Mapping[str, str], name: str = "") -> Loaded:
    """The document of some files, in the order in which they are laid over one another, in long forms.

    ``name`` is the project's, as a person gave it.

    Raises:
        InputInvalid: naming the file or the field.
    """
    loading = _Loading(files, env)
    folder, places_ = str(PurePath(paths[0]).parent), [os.path.normpath(path) for path in paths]
    given = name or env.get(PROJECT_NAME, "")
    said = given or next(filter(None, map(loading.name, reversed(places_))), "")
    try:
        project = valid_project(said, "project's name" if given else "name") if said else _of_folder(folder)
    except InputInvalid as error:
        raise error if given else placed(error, paths, files) from error
    loading.env = {**env, PROJECT_NAME: project}  # Compose sets it, so values may name it
    parts = [loading.document(path) for path in places_]
    try:
        result: Any = {}
        for document in parts:
            result = merged(result, document)
        told, result = judge(long(settled(result)))
    except InputInvalid as error:
        raise placed(error, paths, files, loading.bases) from error
    return Loaded(
        document=result,
        folder=folder,
        bases=loading.bases,
        project=project,
        env=loading.env,
        warnings=(*warnings(loading.unset), *told),
    )


def valid_project(name: str, field: str) -> str:
    """A project's name, if Compose takes it.

    Raises:
        InputInvalid: anything else.
    """
    if not _PROJECT.fullmatch(name):
        expected = "1 to 63 of a-z, 0-9, '_' and '-', beginning with a letter or digit"
        raise InputInvalid(f"{field}: found {shown(name)}, expected {expected}", field=field)
    return name


def _of_folder(folder: str) -> str:
    """The project's name after its folder, as Compose makes it: ``My_App.v2`` is ``my_appv2``."""
    plain = re.sub(r"[^a-z0-9_-]+", "", Path(folder).resolve().name.lower()).lstrip("_-")
    if not plain:
        raise InputInvalid(f"name: missing, and the folder {folder!r} does not yield one; use -p NAME")
    return plain[:63]


def _services(document: Document) -> dict[str, Any]:
    found = document.get("services")
    return found if isinstance(found, dict) else {}


def _base(said: Any, way: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The file, empty for the same one, and the service that the last service of a way extends."""
    where = f"services.{way[-1][1]}.extends"
    said = {"service": said} if isinstance(said, str) else said
    if not isinstance(said, dict) or not isinstance(said.get("service"), str):
        raise InputInvalid(f"{where}: found {shown(said)}, expected a service, or service and file")
    if unknown := sorted(map(str, said.keys() - {"service", "file"})):
        raise InputInvalid(f"{where}.{unknown[0]}: unknown key{nearest(unknown[0], ['file', 'service'])}")
    return str(said.get("file") or ""), said["service"]


def _check_way(way: Sequence[tuple[str, str]], following: tuple[str, str]) -> None:
    where = f"services.{way[-1][1]}.extends"
    if following in way:
        circle = " -> ".join(service for _, service in (*way[way.index(following) :], following))
        raise InputInvalid(f"{where}: forms a cycle: {circle}")
    if len(way) == LONGEST_CHAIN:
        raise InputInvalid(f"{where}: found more than {LONGEST_CHAIN} services in one chain, expected fewer")


def _check_mapping(value: Any) -> None:
    if not isinstance(value, dict):
        raise InputInvalid(f"found {shown(value)}, expected a mapping with services")


def _check_keys(value: Any, path: str = "") -> None:
    """Refuse keys that are no text: ``22:`` or ``yes:`` would have other names than their file shows."""
    if isinstance(value, Override):
        _check_keys(value.value, path)
    elif isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise InputInvalid(f"{path or 'document'}: found the key {shown(key)}, expected text")
            _check_keys(each, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            _check_keys(each, f"{path}[{at}]")


def _moved(service: Any, folder: PurePath) -> Any:
    """A service of a file in another folder, with relative paths as the extending file would write them."""
    if not isinstance(service, dict):
        return service

    def path(text: Any) -> Any:
        relative = isinstance(text, str) and not text.startswith(("/", "~"))
        return str(folder / text) if relative else text

    def mount(entry: Any) -> Any:
        if isinstance(entry, str) and entry.startswith("."):
            return f"./{os.path.normpath(path(entry))}"
        if isinstance(entry, dict) and str(entry.get("source", "")).startswith("."):
            return {**entry, "source": f"./{os.path.normpath(path(entry['source']))}"}
        return entry

    result = dict(service)
    if "env_file" in service:
        entries = normal("env_file", service["env_file"], ("services", "", "env_file"))
        entries = entries if isinstance(entries, list) else [entries]
        result["env_file"] = [
            {**each, "path": path(each.get("path"))} if isinstance(each, dict) else path(each)
            for each in entries
        ]
    if isinstance(service.get("volumes"), list):
        result["volumes"] = [mount(each) for each in service["volumes"]]
    return result
