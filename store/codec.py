"""Converts records from and to JSON, with errors that name the field.

``decode`` ignores fields that this version does not know, and ``rewrite`` keeps them. ``parse_input``
is for input of people and refuses them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from store.entry import Entry, Stored
from store.errors import InputInvalid, RecordInvalid

T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder(order="deterministic")


def encode(record: Any) -> bytes:
    """Canonical JSON: sorted keys, no white space; equal records give equal bytes."""
    return _encoder.encode(record)


def decode(kind: type[T], value: bytes, key: str) -> T:
    """Decode one record.

    Raises:
        RecordInvalid: naming the key, the field, what was found and what was expected.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record: T = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"{key}: {error}", key=key) from error
    return record


def stored(kind: type[T], entry: Entry) -> Stored[T]:
    """Decode an entry and keep the data that a compare-and-set needs.

    Raises:
        RecordInvalid: as ``decode``.
    """
    return Stored(
        key=entry.key,
        record=decode(kind, entry.value, entry.key),
        index=entry.modify_index,
        raw=entry.value,
        flags=entry.flags,
        create_index=entry.create_index,
    )


def rewrite(record: msgspec.Struct, raw: bytes) -> bytes:
    """Encode a changed record and keep every field of ``raw`` that its type does not know."""
    before = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    known = set(record.__struct_encode_fields__)
    unknown = {name: value for name, value in before.items() if name not in known}
    if not unknown:
        return encode(record)
    after = msgspec.json.decode(encode(record), type=dict[str, msgspec.Raw])
    return encode({**unknown, **after})


def parse_input(kind: type[T], data: Any, source: str) -> T:
    """Convert a person's input (parsed YAML or JSON) into a record.

    Raises:
        InputInvalid: unknown key (with the nearest known one), missing key or wrong type, by path.
    """
    for path, found, known in _unknown_fields(kind, data, ""):
        near = difflib.get_close_matches(found, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"
        where = f"{path}.{found}" if path else found
        raise InputInvalid(f"{source}: {where}: unknown key, {hint}", field=where, source=source)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InputInvalid(f"{source}: {_readable(str(error), kind)}", source=source) from error


def _readable(message: str, kind: Any) -> str:
    """msgspec's text → "field: found …, expected …"; ``replicas: found `str`, expected `int```."""
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{path}.{missing[1]}: missing, expected a value".lstrip(".")
    where = path or "document"
    if choice := re.fullmatch(r"Invalid enum value (.+)", text):
        return f"{where}: found {choice[1]}, expected one of {', '.join(_choices(kind, path))}"
    if wrong := re.fullmatch(r"Expected (.+), got (.+)", text):
        return f"{where}: found {wrong[2]}, expected {wrong[1]}"
    return f"{where}: {text}"


def _choices(kind: Any, path: str) -> list[str]:
    """The allowed values of the literal at a path such as ``pod.health.type``."""
    info: Any = msgspec.inspect.type_info(kind)
    for step in re.findall(r"\w+|\[[^]]*\]", path):
        for option in getattr(info, "types", [info]):
            if isinstance(option, msgspec.inspect.StructType):
                info = next((f.type for f in option.fields if f.encode_name == step), None)
            elif isinstance(option, msgspec.inspect.DictType):
                info = option.value_type
            elif isinstance(option, msgspec.inspect.ListType):
                info = option.item_type
    return [str(value) for value in getattr(info, "values", ())]


def _unknown_fields(kind: Any, data: Any, path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (path, unknown key, known keys) for every key of the data that its type does not have."""
    info = msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind
    if isinstance(info, msgspec.inspect.UnionType):
        structs = [
            t
            for t in info.types
            if isinstance(t, msgspec.inspect.StructType | msgspec.inspect.DictType | msgspec.inspect.ListType)
        ]
        if len(structs) == 1:
            yield from _unknown_fields(structs[0], data, path)
    elif isinstance(info, msgspec.inspect.StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        for name, value in data.items():
            if name not in fields:
                yield path, str(name), list(fields)
            else:
                yield from _unknown_fields(fields[name], value, f"{path}.{name}" if path else str(name))
    elif isinstance(info, msgspec.inspect.DictType) and isinstance(data, dict):
        for name, value in data.items():
            yield from _unknown_fields(info.value_type, value, f"{path}.{name}" if path else str(name))
    elif isinstance(info, msgspec.inspect.ListType) and isinstance(data, list):
        for position, value in enumerate(data):
            yield from _unknown_fields(info.item_type, value, f"{path}[{position}]")
