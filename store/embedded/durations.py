"""Durations in Go's format ("10s", "1m30.5s", "500ns"), which Consul's API uses."""

from __future__ import annotations

import re
from fractions import Fraction

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
