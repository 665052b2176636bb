"""Values as short texts for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farmd.commands.difference import lines
from farmd.tables.model import clean


def ago(now: float, then: float) -> str:
    """How long ago, in one unit: ``5s``, ``3m``, ``2h``, ``4d``; empty for never."""
    if then <= 0:
        return ""
    seconds = max(0, int(now - then))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What changed, field by field, as people may see it."""
    return [clean(line) for line in lines(before, after)]


def pairs(values: dict[str, Any]) -> str:
    """``a=1,b=2``, sorted."""
    return ",".join(f"{key}={values[key]}" for key in sorted(values))
