"""The times of a schedule: pure.

A cron expression follows Debian's cron where the clock is put forward or back. A fixed time that does not
exist fires at the first one that does, and a time that exists twice fires once. Where the minute or the hour
begins with ``*``, and with ``every``, elapsed time counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from store.errors import refuse
from store.schedules import Schedule

SHORTEST = 1.0
COUNTED = 1_000
"""As many missed times are counted at once; of more it is only known that there are more."""
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Due(NamedTuple):
    """The times since ``last`` that have come: the ``newest`` that still counts, if any, how many were
    ``missed`` besides, and the time ``until`` which all are dealt with then.
    """

    newest: float | None
    missed: int
    until: float


def zone_of(name: str, field: str) -> tzinfo:
    """A time zone by its IANA name.

    Raises:
        InputInvalid: there is none of that name here.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        refuse(field, repr(name), "an IANA time zone, such as Europe/Berlin", field="zone")


def start_of(schedule: Schedule, field: str = "start") -> float:
    """A time of ``every``; one without an offset is in the schedule's zone.

    Raises:
        InputInvalid: ``start`` is no time.
    """
    if not schedule.start:
        return schedule.created
    try:
        at = datetime.fromisoformat(schedule.start)
        return (
            at if at.tzinfo is not None else at.replace(tzinfo=zone_of(schedule.zone, "zone"))
        ).timestamp()
    except (ValueError, OverflowError):
        refuse(field, repr(schedule.start), "a time such as 2026-01-31T03:00:00Z", field="start")


def check(schedule: Schedule, source: str) -> None:
    """Check what times a schedule has.

    Raises:
        InputInvalid: none at all, or a field that says none.
    """
    if bool(schedule.cron) == (schedule.every is not None):
        found = "both cron and every" if schedule.cron else "neither cron nor every"
        refuse(f"{source}: cron", found, "one of the two", field="cron")
    if schedule.start and schedule.every is None:
        refuse(f"{source}: start", "a start beside cron", "start beside every alone", field="start")
    zone_of(schedule.zone, f"{source}: zone")
    start_of(schedule, f"{source}: start")
    if next(after(schedule, 0.0, f"{source}: cron"), None) is None:
        refuse(f"{source}: cron", repr(schedule.cron), "an expression with a future time", field="cron")


def after(schedule: Schedule, at: float, field: str = "cron") -> Iterator[float]:
    """The times after one, each later than the one before it.

    Raises:
        InputInvalid: the schedule has no such times; this version cannot read them.
    """
    return _every(schedule, at) if schedule.every is not None else _cron(schedule, at, field)


def _every(schedule: Schedule, at: float) -> Iterator[float]:
    start, period = start_of(schedule), schedule.every or math.inf
    if not period >= SHORTEST:  # only a record that no command wrote: it would never come to an end
        refuse("every", f"{period:g} s", f"at least {SHORTEST:g} s", field="every")
    count = max(0, math.floor((at - start) / period) + 1)
    while True:
        if (found := start + count * period) > at:
            yield found
        count += 1


def _cron(schedule: Schedule, at: float, field: str) -> Iterator[float]:
    zone = zone_of(schedule.zone, "zone")
    expression = _WORDS.get(schedule.cron, schedule.cron)
    try:
        if len(expression.split()) != 5:
            raise CronSimError("Wrong number of fields")
        found = CronSim(expression, datetime.fromtimestamp(at, zone))
    except CronSimError as error:
        expected = "five fields, such as 30 2 * * *, or @daily"
        refuse(field, f"{schedule.cron!r} ({str(error).lower()})", expected, field="cron")
    latest = at
    for each in found:
        # What does not exist, and what exists twice, may be told twice or out of order.
        if (moment := each.timestamp()) > latest:
            latest = moment
            yield moment


def offset(schedule: Schedule) -> float:
    """How many seconds after its times a schedule makes its jobs: fewer than ``jitter``, by its name."""
    digest = hashlib.sha256(schedule.name.encode()).digest()
    return float(int.from_bytes(digest[:8]) % max(1, int(schedule.jitter)))


def due(schedule: Schedule, now: float) -> Due | None:
    """What is due at a time; None: nothing."""
    last, now, counts = schedule.last, now - offset(schedule), now - offset(schedule) - schedule.catch_up
    found = list(_until(after(schedule, last), now, COUNTED))
    if not found:
        return None
    if len(found) == COUNTED:  # what is older than the time that still counts needs no look
        recent = list(_until(after(schedule, max(found[-1], counts)), now, math.inf))
        found += recent
    newest = found[-1]
    if newest < counts:
        return Due(None, len(found), max(newest, counts))
    return Due(newest, len(found) - 1, newest)


def _until(times: Iterator[float], now: float, most: float) -> Iterator[float]:
    for each in islice(times, None if math.isinf(most) else int(most)):
        if each > now:
            return
        yield each


def shown(at: float, zone: str) -> str:
    """A time in a zone and in UTC."""
    there = datetime.fromtimestamp(at, zone_of(zone, "zone")).strftime("%a %Y-%m-%d %H:%M:%S %Z")
    utc = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return there if zone == "UTC" else f"{there} ({utc})"


def stamp(at: float) -> str:
    """A time as the end of a job's name."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%d%H%M%S")
