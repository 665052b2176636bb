"""Converts records from and to JSON, with errors that name the field.

``decode`` ignores fields that this version does not know, and ``rewrite`` keeps them. ``parse_input``
is for input of people and refuses them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from store import mistakes, quantities
from store.canonical import canonical
from store.entry import Entry, Stored
from store.errors import InputInvalid, RecordInvalid

T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder(order="deterministic")


def encode(record: Any) -> bytes:
    """Canonical JSON: sorted keys, no defaults, no white space; equal records give equal bytes."""
    return _encoder.encode(canonical(record))


def decode(kind: type[T], value: bytes, key: str) -> T:
    """Decode one record. A type may limit its records to ``LARGEST`` bytes.

    Raises:
        RecordInvalid: naming the key, the field, what was found and what was expected.
    """
    if (largest := getattr(kind, "LARGEST", 0)) and len(value) > largest:
        raise RecordInvalid(f"{key}: found {len(value)} bytes, expected at most {largest}", key=key)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record: T = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordInvalid(f"{key}: {_mistake(kind, value) or error}", key=key) from error
    return record


def _mistake(kind: Any, value: bytes) -> str:
    """What is wrong with a record, in people's words; empty if only msgspec can tell."""
    try:
        found = mistakes.first(kind, msgspec.json.decode(value), unknown=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
