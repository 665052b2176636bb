"""A worker's durable state, ``work/<kind>/<id>``: the only worker state that decisions read (R10)."""

from __future__ import annotations

import msgspec


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Crashes in a row, the earliest next try (seconds since the epoch), and why it is blocked.

    ``record`` is the ModifyIndex of the record that it was blocked over: another one is a new chance.
    """

    crashes: int = 0
    not_before: float = 0.0
    blocked: str = ""
    record: int = 0
