"""Reads the values of a section, from TOML or from the text of a variable, and tells all mistakes.

In a text a list is ``a, b``, a table ``zone=a,rack=7``, a list of tables JSON, and a time has a unit or is a
number of seconds. A mistake is one line: the key, what was found, what was expected. A value that may hold a
secret is never shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import msgspec

from farmd.config.fields import Key, Secret, Section, form, keys, shown
from store.errors import InputInvalid
from store.mistakes import nearest
from store.quantities import seconds

_TRUE, _FALSE = {"1", "on", "t", "true", "y", "yes"}, {"0", "f", "false", "n", "no", "off"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with a key; ``place`` is where in its value: ``[0].type``."""

    key: str
    place: str
    what: str

    def line(self, section: str, origin: str) -> str:
        """One line for people."""
        if re.match(rf"{re.escape(self.key)}[.:[]", self.what):  # the check names the key itself
            return f"{origin}: {section}.{self.what}"
        return f"{origin}: {section}.{self.key}{self.place}: {self.what}"


class _Wrong(Exception):
    """A value that its key does not accept, or items of it, each with its place."""

    def __init__(self, *wrongs: tuple[str, str]) -> None:
        super().__init__()
        self.wrongs = wrongs


def read(model: type[Section], given: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """The values of a section's keys; what is wrong with them is added to ``mistakes``."""
    values = {}
    for name, one in keys(model).items():
        try:
            if name in given:
                values[name] = _value(one, given[name])
            elif one.required:
                raise _Wrong(("", "found nothing, expected a value"))
        except _Wrong as error:
            mistakes += [Mistake(name, place, what) for place, what in error.wrongs]
    return values


def _value(one: Key, given: Any) -> Any:
    """The value of a key.

    Raises:
        _Wrong: the key does not accept it.
    """
    try:
        value = _typed(one, _parsed(one.kind, given) if isinstance(given, str) else given)
        if check := one.extra["check"]:
            check(value)
    except (InputInvalid, ValueError) as error:
        said = str(error)
        told = said if "found" in said else f"found {_found(one, given)}, {said}"
        raise _Wrong(("", told)) from error
    return value


def _parsed(kind: Any, text: str) -> Any:
    """The value that a text stands for; the text itself where it is none.

    Raises:
        InputInvalid, ValueError: it is none, and the reason says more than the type.
    """
    if kind is float:
        return seconds(text)
    if kind is int:
        return _whole(text)
    if kind is bool:
        word = text.lower()
        return word in _TRUE if word in _TRUE | _FALSE else text
    if get_origin(kind) is dict:
        return _pairs(text)
    if get_origin(kind) is list and get_args(kind) == (str,):
        return [part.strip() for part in text.split(",") if part.strip()]
    return _tables(text) if get_origin(kind) is list else text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text  # its type and limits are named


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise ValueError("expected name=value pairs, separated by commas")
    return {name.strip(): found.strip() for name, _, found in pairs}


def _tables(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected a JSON list of objects ({error})") from error


def _typed(one: Key, value: Any) -> Any:
    """The value in the key's type and within its limits."""
    container, wrong = get_origin(one.kind), f"found {_found(one, value)}, expected {form(one)}"
    if container in (list, dict):
        if not isinstance(value, container):
            raise _Wrong(("", wrong))
        if container is dict:
            return dict(
                zip(value, _items(str, {f".{name}": item for name, item in value.items()}), strict=True)
            )
        return _items(get_args(one.kind)[0], {f"[{place}]": item for place, item in enumerate(value)})
    try:
        kind = str if one.kind is Secret else one.annotated
        # Of other types a whole number may be 5.0, and a truth 1.
        found = msgspec.convert(value, kind, strict=isinstance(value, str))
    except msgspec.ValidationError as error:
        raise _Wrong(("", wrong)) from error
    if isinstance(found, float) and not math.isfinite(found):
        raise _Wrong(("", wrong))
    return Secret(found) if one.kind is Secret else found


def _items(kind: type, items: Mapping[str, Any]) -> list[Any]:
    """The items of a list or table, which are given by their places: texts, or sections."""
    values, wrongs = [], list[tuple[str, str]]()
    for place, item in items.items():
        try:
            values.append(_text(item) if kind is str else _section(kind, item))
        except _Wrong as error:
            wrongs += [(place + inner, what) for inner, what in error.wrongs]
    if wrongs:
        raise _Wrong(*wrongs)
    return values


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise _Wrong(("", f"found {_plain(item)}, expected text"))
    return item


def _section(model: type[Section], item: Any) -> Section:
    if not isinstance(item, dict):
        raise _Wrong(("", "found [hidden], expected a table"))
    mistakes = list[Mistake]()
    values = read(model, item, mistakes)
    mistakes += [Mistake(name, "", unknown(model, name)) for name in item if name not in keys(model)]
    if mistakes:
        raise _Wrong(*[(f".{each.key}{each.place}", each.what) for each in mistakes])
    return model(**values)


def unknown(model: type[Section], name: str) -> str:
    """What is said of a key that the section does not have."""
    return f"unknown key{nearest(name, list(keys(model)))}"


def _found(one: Key, value: Any) -> str:
    """The value that was found, unless it may contain a secret."""
    tables = get_origin(one.kind) is list and get_args(one.kind) != (str,)
    return "[hidden]" if one.kind is Secret or tables else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = shown(value if isinstance(value, str | int | float | None) else str(value))
    return text if len(text) <= 80 else text[:80] + "…"
