"""JSON and durations as Consul's own decoder accepts them, with the same errors."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

# Durations in Go's format ("10s", "1m30.5s", "500ns"), which Consul's API uses.

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(\d*)(\.\d*)?([^\d.]*)")
_GREATEST = 2**63 - 1


class InvalidDuration(ValueError):
    """The text is no duration; the message is Go's."""


def parse(text: str) -> int:
    """The nanoseconds of a duration.

    Raises:
        InvalidDuration: with the text that Go's ``time.ParseDuration`` gives.
    """
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise InvalidDuration(f'time: invalid duration "{text}"')
    total = Fraction(0)
    while rest:
        found = _PART.match(rest)
        whole, fraction, unit = found.groups() if found else ("", None, "")
        if not whole and fraction in (None, "."):
            raise InvalidDuration(f'time: invalid duration "{text}"')
        if not unit:
            raise InvalidDuration(f'time: missing unit in duration "{text}"')
        if unit not in _UNITS:
            raise InvalidDuration(f'time: unknown unit "{unit}" in duration "{text}"')
        total += Fraction((whole or "0") + (fraction or ".0") + "0") * _UNITS[unit]
        rest = rest[found.end() :] if found else ""
    if total > _GREATEST:
        raise InvalidDuration(f'time: invalid duration "{text}"')
    return -int(total) if text.startswith("-") else int(total)


# Decodes JSON bodies as Consul's decoder does, with the same errors.
#
# Field names match in any case, ``null`` is a missing field, and text after the first value is ignored.
# Clients show these errors to people, so common mistakes get the same text as from Consul.

_decoder = json.JSONDecoder()
_EXPECTED = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Expecting ',' delimiter": "after array element",
}
_UINT64 = 2**64


class Malformed(Exception):
    """The body cannot be read; the text is Go's."""


@dataclass(frozen=True, slots=True)
class Field:
    """The type of a field: ``kind`` is the JSON kind, ``go`` the name of the type in messages."""

    kind: str
    go: str


def first_value(body: bytes) -> Any:
    """The first JSON value of a body.

    Raises:
        Malformed: the body has no complete value.
    """
    text = body.decode("utf-8", errors="replace").lstrip(" \t\r\n")
    if not text:
        raise Malformed("EOF")
    try:
        value, _ = _decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
            raise Malformed("unexpected EOF") from error
        wanted = _EXPECTED.get(error.msg, "in string literal")
        raise Malformed(f"invalid character '{text[error.pos]}' {wanted}") from error
    return value


def wrong_kind(value: Any, where: str) -> Malformed:
    """Go's error for a value of the wrong kind; ``where`` is the text after "into Go"."""
    return Malformed(f"json: cannot unmarshal {_kind(value)} into Go {where}")


def fields(
    value: Any, known: Mapping[str, Field], *, owner: str, strict: bool, whole: str | None = None
) -> dict[str, Any]:
    """The known fields of an object, checked; absent and null ones are left out.

    Args:
        value: the value, which should be an object.
        known: the known fields by name.
        owner: text of messages before the field's name.
        strict: refuse unknown fields instead of ignoring them.
        whole: text of the message if ``value`` is no object.

    Raises:
        Malformed: with Go's text.
    """
    if not isinstance(value, dict):
        raise wrong_kind(value, whole or f"struct field {owner}")
    spelled = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    for name, each in value.items():
        proper = spelled.get(name.lower())
        if proper is None and strict:
            raise Malformed(f'json: unknown field "{name}"')
        if proper is not None and each is not None:
            found[proper] = _checked(each, known[proper], f"struct field {owner}.{proper}")
    return found


def _checked(value: Any, field: Field, where: str) -> Any:
    where = f"{where} of type {field.go}"
    if field.kind == "bytes":
        if not isinstance(value, str):
            raise wrong_kind(value, where)
        return _base64(value)
    if field.kind == "uint":
        return _uint(value, where)
    if field.kind != "any" and _kind(value) != field.kind:
        raise wrong_kind(value, where)
    return value


def _uint(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind(value, where)
    if not isinstance(value, int) or not 0 <= value < _UINT64:
        raise Malformed(f"json: cannot unmarshal number {value} into Go {where}")
    return value


def _base64(text: str) -> bytes:
    text = text.replace("\n", "").replace("\r", "")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        wrong = next(
            (i for i, c in enumerate(text) if not (c.isalnum() and c.isascii()) and c not in "+/="), 0
        )
        raise Malformed(f"illegal base64 data at input byte {wrong}") from error


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
