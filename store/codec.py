"""Converts records from and to JSON, with errors that name the field.

``decode`` ignores fields that this version does not know, and ``rewrite`` keeps them. ``parse_input``
is for input of people and refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from store import mistakes, quantities
from store.canonical import canonical
from store.entry import Entry, Stored
from store.errors import InputInvalid, RecordInvalid

T = TypeVar("T")

UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no record."""
_decoders: dict[type[Any], tuple[Callable[[bytes], Any], float]] = {}
_encoder = msgspec.json.Encoder(order="deterministic")


def encode(record: Any) -> bytes:
    """Canonical JSON: sorted keys, no defaults, no white space; equal records give equal bytes."""
    return _encoder.encode(canonical(record))


def encodes_to(record: Any, value: bytes) -> bool:
    """Whether ``encode`` gives just these bytes, so that they say no more than the record."""
    # A stored record is nearly always canonical already, and to make it so costs more than to encode it.
    return _encoder.encode(record) == value or encode(record) == value


def decode(kind: type[T], value: bytes, key: str) -> T:
    """Decode one record. A type may limit its records to ``LARGEST`` bytes.

    Raises:
        RecordInvalid: naming the key, the field, what was found and what was expected.
    """
    decoder, largest = _decoders.get(kind) or _prepared(kind)
    if len(value) > largest:
        raise RecordInvalid(f"{key}: found {len(value)} bytes, expected at most {largest}", key=key)
    try:
        record: T = decoder(value)
    except UNDECODED as error:
        raise RecordInvalid(f"{key}: {_mistake(kind, value) or error}", key=key) from error
    return record


def _prepared(kind: type[Any]) -> tuple[Callable[[bytes], Any], float]:
    """What decodes a type's records, and how many bytes they may have."""
    found = msgspec.json.Decoder(kind).decode, getattr(kind, "LARGEST", 0) or math.inf
    _decoders[kind] = found
    return found


def _mistake(kind: Any, value: bytes) -> str:
    """What is wrong with a record, in people's words; empty if only msgspec can tell."""
    try:
        found = mistakes.first(kind, msgspec.json.decode(value), unknown=False)
    except UNDECODED:
        return ""
    return f"{found[0] or 'record'}: {found[1]}" if found is not None else ""


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
    return _encoder.encode({**unknown, **after})


def parse_input(kind: type[T], data: Any, source: str) -> T:
    """Convert a person's input (parsed YAML or JSON) into a record.

    Amounts and times may have units (``store.quantities``). ``source`` begins the message, if there is one.

    Raises:
        InputInvalid: naming the path of the first mistake, what was found and what was expected.
    """
    begin = f"{source}: " if source else ""
    try:
        plain = quantities.plain(kind, data)
    except InputInvalid as error:
        raise InputInvalid(f"{begin}{error.message}", source=source, **error.fields) from error
    if (mistake := mistakes.first(kind, plain)) is not None:
        path, text = mistake
        raise InputInvalid(f"{begin}{path or 'document'}: {text}", field=path, source=source)
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InputInvalid(f"{begin}{error}", source=source) from error
