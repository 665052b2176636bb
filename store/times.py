"""Points in time: records hold seconds since the epoch, programs that read JSON get RFC 3339.

A field that is a point in time has the type ``Time``, so that ``plain`` knows it.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

LATEST = 253402300799.0  # the year 9999 ends
Time = Annotated[float, msgspec.Meta(extra={"time": True}, extra_json_schema={"format": "date-time"})]
"""Seconds since the epoch; 0 stands for no time."""


def rfc3339(at: float, timespec: str = "seconds") -> str:
    """A time in UTC, such as ``2026-01-02T03:04:05Z``; one before 1970 or after 9999 becomes that limit."""
    text = datetime.fromtimestamp(max(0.0, min(at, LATEST)), UTC).isoformat(timespec=timespec)
    return text.replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """A time such as ``2026-01-02T03:04:05.123456789Z`` as seconds since the epoch.

    Raises:
        ValueError: no such text.
    """
    return datetime.fromisoformat(text).timestamp()


def plain(value: Any) -> Any:
    """Plain data for JSON: every field, also those at their defaults, and times as RFC 3339 or null."""
    if isinstance(value, msgspec.Struct):
        times = _times(type(value))
        return {
            name: moment(getattr(value, name)) if name in times else plain(getattr(value, name))
            for name in value.__struct_fields__
        }
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def moment(at: float) -> str | None:
    """A time for JSON, in milliseconds; None for no time."""
    return rfc3339(at, "milliseconds") if at else None


@functools.cache
def _times(kind: type[msgspec.Struct]) -> frozenset[str]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    types = {field.name: field.type for field in info.fields}
    metas = {name: kind for name, kind in types.items() if isinstance(kind, msgspec.inspect.Metadata)}
    return frozenset(name for name, meta in metas.items() if (meta.extra or {}).get("time"))
