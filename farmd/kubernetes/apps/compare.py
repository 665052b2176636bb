"""Compares an object with its document, in the fields that the document states: pure.

A server writes defaults into what it stores and may write an amount in another way, so a difference that is
found here is asked of the server once more, by a dry run; none that is not found here is one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_IDENTITY = frozenset({"apiVersion", "kind"})
_SERVERS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
_EMPTY: tuple[Any, ...] = (None, {}, [], "")
_LONGEST_VALUE = 60
_SECRET = ("data", "stringData")


def differing(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The paths of stated fields that are otherwise: ``spec.replicas``, ``spec.containers[0].image``."""
    return [path for path, _, _ in _differences(document, found)]


def values(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The same paths with what stands and what the document states, for people; never a Secret's content."""
    secret = (document.get("apiVersion"), document.get("kind")) == ("v1", "Secret")
    return [
        f"{path}: hidden, because it is a Secret's"
        if secret and path.partition(".")[0] in _SECRET
        else f"{path}: {_shown(before)} -> {_shown(said)}"
        for path, said, before in _differences(document, found)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _differences(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    said = {name: value for name, value in document.items() if name not in _IDENTITY}
    return _within(said, found, "")


def _within(said: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if said in _EMPTY and found in _EMPTY:
        return
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for name, value in said.items():
            yield from _within(value, found.get(name), f"{path}.{name}" if path else name)
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for at, (one, other) in enumerate(zip(said, found, strict=True)):
            yield from _within(one, other, f"{path}[{at}]")
    elif said != found:
        yield path, said, found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an object is another one after an apply, apart from what every write changes."""
    return _core(before) != _core(after)


def _core(found: Mapping[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in found["metadata"].items() if name not in _SERVERS}
    return {**found, "metadata": meta}


def without(document: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A document that does not speak of some fields."""
    found = _changeable(document, paths)
    for path in paths:
        *folders, last = path.split(".")
        place = _place(found, folders)
        if place is not None:
            place.pop(last, None)
    return found


def with_live(document: Mapping[str, Any], live: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A document with the live values of some fields: a field that an apply leaves out is deleted."""
    found = _changeable(document, paths)
    for path in paths:
        *folders, last = path.split(".")
        said, there = _place(found, folders), _place(live, folders)
        if said is not None and there is not None and last in there:
            said[last] = there[last]
        elif said is not None:
            said.pop(last, None)
    return found


def _changeable(document: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """A copy of a document in which these fields can be changed."""
    return copy.deepcopy(dict(document)) if paths else dict(document)


def _place(found: Any, folders: list[str]) -> dict[str, Any] | None:
    for name in folders:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, dict) else None


def writer(found: Mapping[str, Any], ours: str) -> str:
    """The manager that wrote the object last, other than this one; empty: none is known."""
    others = [each for each in found["metadata"].get("managedFields") or () if each["manager"] != ours]
    last = max(others, key=lambda each: each.get("time") or "", default=None)
    return "" if last is None else str(last["manager"])
