"""Decides which manifests, leavings and hours of the audit log may be deleted: pure (R24, R25).

What must never break: a manifest is deleted only if nothing refers to it, it was condemned at the very index
that is deleted, and this worker itself has watched that condemnation for longer than any transaction can
last. Other processes' clocks decide only how long it is kept beyond that.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence, Set

from farmd.housekeeping.facts import PATIENCE_SECONDS, Body, Collection, Sighting
from store.audit import utc_hour

_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d")
# A condemnation further in the future than this was written by a clock that is wrong.
SKEW_SECONDS = 300.0


def window(shas: Iterable[str], after: str, limit: int) -> list[str]:
    """The next ``limit`` digests in order after ``after``, wrapping around, so that each gets its turn."""
    order = sorted(shas)
    start = bisect.bisect_right(order, after)
    return (order[start:] + order[:start])[:limit]


def sort_out(
    bodies: Sequence[Body],
    referenced: Set[str],
    seen: Mapping[str, Sighting],
    *,
    now: float,
    mono: float,
    age: float,
) -> Collection:
    """Sort values into those to condemn, absolve and delete, after all references were read."""
    condemn, absolve, collect = [], [], []
    for body in bodies:
        condemned = body.flags != 0
        if body.name in referenced:
            if condemned:
                absolve.append(body)
        elif not condemned or body.flags > now + SKEW_SECONDS:
            condemn.append(body)
        elif _ripe(body, seen.get(body.name), now=now, mono=mono, age=age):
            collect.append(body)
    return Collection(tuple(condemn), tuple(absolve), tuple(collect))


def _ripe(body: Body, sighting: Sighting | None, *, now: float, mono: float, age: float) -> bool:
    watched = sighting is not None and sighting.index == body.index and mono - sighting.at >= PATIENCE_SECONDS
    return watched and now - body.flags >= age


def expired(hours: Iterable[str], *, now: float, retention: float) -> list[str]:
    """The hours that are wholly older than the retention, oldest first; other names are ignored."""
    oldest_kept = utc_hour(now - retention)
    return sorted(hour for hour in hours if _HOUR.fullmatch(hour) and hour < oldest_kept)
