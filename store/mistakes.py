"""Says what is wrong with a person's input in that person's words: key, value found, what was expected.

msgspec decides whether input fits a type. Its messages name types of Python and of JSON and hide the keys
of mappings, so this module looks for the first mistake again and describes it.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import operator
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

LONGEST, MANY = 80, 40
_UNKNOWN = "unknown key"
_WORDS: dict[type[inspect.Type], tuple[str, tuple[type, ...]]] = {
    inspect.IntType: ("a whole number", (int,)),
    inspect.FloatType: ("a number", (int, float)),
    inspect.StrType: ("text", (str,)),
    inspect.BoolType: ("true or false", (bool,)),
    inspect.NoneType: ("nothing", (type(None),)),
    inspect.StructType: ("a mapping", (dict,)),
    inspect.DictType: ("a mapping", (dict,)),
    inspect.ListType: ("a list", (list,)),
}

Mistake = tuple[str, str]
"""(path, what is wrong); the path of the whole document is empty."""

_Option = tuple[inspect.Type, str]
"""A type without its metadata, and its words in place of those that its limits give."""


@cache
def described(kind: Any) -> inspect.Type:
    """What msgspec knows about a type, cached because it is slow."""
    return inspect.type_info(kind)


def first(kind: Any, data: Any, *, unknown: bool = True) -> Mistake | None:
    """The first mistake in parsed YAML or JSON for a type; None if this module finds none.

    ``unknown``: whether a key that the type does not have is one.
    """
    found = _mistakes(described(kind), data, "")
    return next((one for one in found if unknown or not one[1].startswith(_UNKNOWN)), None)


def shown(value: Any) -> str:
    """A value for a message: short, and in the form that files have."""
    if isinstance(value, dict | list):
        word = "mapping" if isinstance(value, dict) else "list"
        return f"a {word}" if value else f"an empty {word}"
    if value is None:
        return "nothing"
    if isinstance(value, datetime.date):
        return f"the date {value}"
    if isinstance(value, int) and value.bit_length() > LONGEST * 3:
        return f"a number of more than {LONGEST} digits"
    if isinstance(value, float) and not math.isfinite(value):
        return "-.inf" if value < 0 else f".{value}"
    if isinstance(value, int | float):
        return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _mistakes(info: inspect.Type, data: Any, path: str) -> Iterator[Mistake]:
    options = _options(info)
    fitting = [option for option, _ in options if _fits(option, data) and _within_limits(option, data)]
    if not fitting:
        yield path, f"found {shown(data)}, expected {_expected(options, data)}"
    elif len(fitting) == 1:
        yield from _within(fitting[0], data, path)


def _options(info: inspect.Type) -> list[_Option]:
    """The types that a type admits. The metadata of one may say what is ``expected``."""
    return [
        (option.type, (option.extra or {}).get("expected", ""))
        if isinstance(option, inspect.Metadata)
        else (option, "")
        for option in getattr(info, "types", [info])
    ]


def _fits(info: inspect.Type, data: Any) -> bool:
    """Whether data has the form of a type; msgspec alone judges types that are not listed here."""
    if isinstance(info, inspect.LiteralType):
        return any(data == value and type(data) is type(value) for value in info.values)
    if isinstance(info, inspect.IntType) and isinstance(data, float):
        return data.is_integer()
    _, forms = _WORDS.get(type(info), ("", (object,)))
    return isinstance(data, forms) and (not isinstance(data, bool) or bool in forms or object in forms)


def _within_limits(info: inspect.Type, data: Any) -> bool:
    """Whether data of the right form is within the limits of a number, or has the pattern of a text."""
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return all(
            limit is None or within(data, limit)
            for limit, within in (
                (info.ge, operator.ge),
                (info.gt, operator.gt),
                (info.le, operator.le),
                (info.lt, operator.lt),
            )
        )
    if isinstance(info, inspect.StrType):
        return len(data) >= (info.min_length or 0) and re.search(info.pattern or "", data) is not None
    return True


def _expected(options: list[_Option], data: Any) -> str:
    choices = [value for option, _ in options for value in getattr(option, "values", ())]
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    words = [
        said or _WORDS[type(option)][0] + _limits(option)
        for option, said in options
        if not isinstance(option, inspect.NoneType)
    ]
    quotes = isinstance(data, bool | int | float | datetime.date) and "text" in words
    return " or ".join(words) + (": put it in quotes" if quotes else "")


def _limits(info: inspect.Type) -> str:
    """The limits of a number in words; a pattern is no words, so its type's metadata says what it means."""
    if isinstance(info, inspect.StrType):
        return " that is not empty" if info.min_length else ""
    least, above, most = (getattr(info, name, None) for name in ("ge", "gt", "le"))
    if least is not None and most is not None:
        return f" from {shown(least)} to {shown(most)}"
    told = [(least, "of at least"), (above, "above"), (most, "of at most")]
    return "".join(f" {word} {shown(limit)}" for limit, word in told if limit is not None)


def _within(info: inspect.Type, data: Any, path: str) -> Iterator[Mistake]:
    if isinstance(info, inspect.StructType):
        yield from _of_fields(info, data, path)
    elif isinstance(info, inspect.DictType):
        for name, value in data.items():
            if not _fits(info.key_type, name):
                yield (
                    path,
                    f"found the key {shown(name)}, expected {_expected(_options(info.key_type), name)}",
                )
            yield from _mistakes(info.value_type, value, _joined(path, name))
    elif isinstance(info, inspect.ListType):
        for place, value in enumerate(data):
            yield from _mistakes(info.item_type, value, f"{path}[{place}]")


def _of_fields(info: inspect.StructType, data: dict[Any, Any], path: str) -> Iterator[Mistake]:
    fields = {field.encode_name: field for field in info.fields}
    for name in data:
        if name not in fields:
            yield _joined(path, name), f"{_UNKNOWN}{_meant(str(name), info)}"
    for name, field in fields.items():
        if name in data:
            yield from _mistakes(field.type, data[name], _joined(path, name))
        elif field.required:
            yield _joined(path, name), f"missing, expected {_expected(_options(field.type), None)}"


def _meant(name: str, info: inspect.StructType) -> str:
    """The end of a message about an unknown key: a key of nearly the same name, or the field that has such a
    key inside.
    """
    known = sorted(field.encode_name for field in info.fields)
    if not difflib.get_close_matches(name, known, n=1, cutoff=0.8):
        for field in info.fields:
            for option, _ in _options(field.type):
                if isinstance(option, inspect.StructType) and name in {
                    each.encode_name for each in option.fields
                }:
                    return f", did you mean '{field.encode_name}.{name}'?"
    return nearest(name, known)


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def nearest(found: str, known: list[str], forms: str = "") -> str:
    """The end of a message about an unknown name: the most similar known one, else ``forms`` or all; of many
    the more similar ones.
    """
    near = difflib.get_close_matches(found, known, n=1, cutoff=0.5)
    if near:
        return f", did you mean {near[0]!r}?"
    if len(known) > MANY and not forms:
        close = difflib.get_close_matches(found, known, n=5, cutoff=0.0)
        forms = f"one of {len(known)}, such as {', '.join(close)}"
    return f", expected {forms or 'one of ' + ', '.join(known)}"
