"""The freeze of a kind of work: ``failsafe/<kind>`` (R18, R19)."""

from __future__ import annotations

import msgspec


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's word that this very evidence is understood; it expires (seconds since the epoch)."""

    evidence: str
    by: str
    until: float
    reason: str = ""


class Failsafe(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why removals stand still. ``evidence`` is a stable text that an acknowledgement must name."""

    evidence: str
    detail: str = ""
    by: str = ""
    since: float = 0.0
    acknowledgement: Acknowledgement | None = None


def frozen(record: Failsafe | None, now: float) -> bool:
    """Whether the record freezes its kind: it stands and no acknowledgement of its evidence is in force."""
    if record is None:
        return False
    word = record.acknowledgement
    return word is None or word.evidence != record.evidence or word.until <= now
