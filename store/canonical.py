"""Puts records into canonical form, so that equal records have equal bytes and equal digests.

msgspec omits a field that *is* its default, by identity: ``2.0`` out of YAML is another object than the
default ``2.0``, and ``/`` out of JSON another than ``/`` out of YAML. Here a value that equals its default
becomes that default, so the bytes of a record depend on what it says and not on how it was read.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


class _Field(NamedTuple):
    """A field that may differ from its default by identity alone, or hold records of which one may."""

    name: str
    default: Any
    nested: bool


def canonical(value: T) -> T:
    """An equal value in canonical form; the same object if it already has that form."""
    found: Any = value
    if isinstance(value, msgspec.Struct):
        changes: dict[str, Any] = {}
        for name, default, nested in _fields(type(value)):
            old = getattr(value, name)
            if old is not default:
                new = canonical(old) if nested else old
                new = default if new == default else new
                if new is not old:
                    changes[name] = new
        found = msgspec.structs.replace(value, **changes) if changes else value
    elif isinstance(value, list):
        items = [canonical(item) for item in value]
        found = items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    elif isinstance(value, dict):
        pairs = {key: canonical(item) for key, item in value.items()}
        found = pairs if any(pairs[key] is not value[key] for key in pairs) else value
    same: T = found
    return same


def builtins(value: Any) -> Any:
    """A value as plain data, as ``msgspec.to_builtins``, without the fields that equal their defaults."""
    return msgspec.to_builtins(canonical(value))


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = [_Field(each.name, each.default, _nested(each.type)) for each in info.fields]
    return tuple(each for each in fields if each.nested or not _unique(each.default))


def _nested(info: inspect.Type) -> bool:
    """Whether a value of a type may hold records. All that have any are walked, which ends by itself."""
    if isinstance(info, inspect.Metadata):
        return _nested(info.type)
    if isinstance(info, inspect.UnionType):
        return any(map(_nested, info.types))
    if isinstance(info, inspect.DictType):
        return _nested(info.value_type)
    if isinstance(info, inspect.ListType):
        return _nested(info.item_type)
    return isinstance(info, inspect.StructType)


def _unique(default: Any) -> bool:
    """Whether Python has one object alone that equals a default."""
    if isinstance(default, int):  # such small numbers, and both booleans
        return -5 <= default <= 256
    return default is msgspec.NODEFAULT or default is None or default == ""
