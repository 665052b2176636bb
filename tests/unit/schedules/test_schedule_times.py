"""The times of schedules: nights in which clocks change, leap days, elapsed time, jitter, and what is due."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.schedules import times
from farmd.schedules.commands import FILE
from store.errors import InputInvalid
from store.schedules import Schedule
from store.times import rfc3339, seconds_of
from tests.effort import tries

JOB = {"types": [{"name": "w", "pod": {"id": "tick", "command": ["date"]}}]}

# zone, expression, after this time → the next times, all in UTC
NIGHTS = [
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
    ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
    ("Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
    ("Europe/Berlin", "30 * * * *", "2026-03-29T00:00", ["2026-03-29T00:30", "2026-03-29T01:30"]),
    ("Europe/Berlin", "30 * * * *", "2026-10-25T00:00", ["2026-10-25T00:30", "2026-10-25T01:30"]),
    ("Europe/Berlin", "*/30 2 * * *", "2026-03-28T12:00", ["2026-03-30T00:00", "2026-03-30T00:30"]),
    ("America/New_York", "15 2 * * *", "2026-03-07T12:00", ["2026-03-08T07:00", "2026-03-09T06:15"]),
    ("America/New_York", "15 1 * * *", "2026-10-31T12:00", ["2026-11-01T05:15", "2026-11-02T06:15"]),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
    ("America/St_Johns", "30 2 * * *", "2026-03-07T12:00", ["2026-03-08T05:30", "2026-03-09T05:00"]),
    ("America/Santiago", "@daily", "2026-09-05T12:00", ["2026-09-06T04:00", "2026-09-07T03:00"]),
    ("Asia/Kathmandu", "0 0 29 2 *", "2026-01-01T00:00", ["2028-02-28T18:15", "2032-02-28T18:15"]),
    ("UTC", "0 12 31 * *", "2026-02-01T00:00", ["2026-03-31T12:00", "2026-05-31T12:00"]),
]


def schedule(**fields: object) -> Schedule:
    return FILE.build(FILE.parse({"name": "tick", "job": JOB, **fields}, "file"), "0")


def told(made: Schedule, after: float, count: int) -> list[str]:
    return [rfc3339(at)[:16] for at in islice(times.after(made, after), count)]


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), NIGHTS)
def test_nights_in_which_clocks_change_follow_the_rule_of_debians_cron(zone, cron, after, expected):
    assert told(schedule(cron=cron, zone=zone), seconds_of(f"{after}:00Z"), 2) == expected


@pytest.mark.parametrize("night", ["2026-03-29", "2026-10-25"])
def test_every_counts_elapsed_time_from_its_start_whatever_clocks_do(night):
    made = schedule(every="90m", start=f"{night}T00:00:00", zone="Europe/Berlin")
    found = list(islice(times.after(made, times.start_of(made)), 5))
    assert [at - times.start_of(made) for at in found] == [5400.0 * count for count in range(1, 6)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "cron"),
        ({"cron": "@daily", "every": 5}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "@daily", "zone": "Europe/Nowhere"}, "zone"),
        ({"cron": "@daily", "start": "2026-01-01"}, "start"),
        ({"every": 5, "start": "soon"}, "start"),
        ({"every": 0.5}, "every"),
        ({"every": 5, "name": "a" * 26}, "name"),
        ({"every": 5, "job": {**JOB, "name": "other"}}, "job.name"),
        ({"every": 5, "job": {"types": []}}, "types"),
        ({"every": 5, "keep": {"done": 101}}, "keep.done"),
        ({"every": 5, "catch_up": "8d"}, "catch_up"),
    ],
)
def test_what_has_no_times_is_refused_by_its_field(fields, field):
    with pytest.raises(InputInvalid) as refused:
        schedule(**fields)
    assert field in refused.value.message


@settings(max_examples=tries(50), deadline=None)
@given(
    cron=st.sampled_from([night[1] for night in NIGHTS] + ["* * * * *", "*/7 */5 * * *"]),
    zone=st.sampled_from(sorted({night[0] for night in NIGHTS})),
    begin=st.integers(int(seconds_of("2026-03-01T00:00:00Z")), int(seconds_of("2026-11-30T00:00:00Z"))),
    steps=st.lists(st.integers(1, 90_000), min_size=1, max_size=8),
)
def test_each_time_is_due_once_or_missed_whenever_somebody_looks(cron, zone, begin, steps):
    made = Schedule(id="0", name="tick", cron=cron, zone=zone, last=float(begin), catch_up=600.0)
    now, known, fired, missed = float(begin), made, list[float](), 0
    for step in steps:
        now += step
        if (due := times.due(known, now)) is not None:
            assert known.last < due.until <= now
            fired += [] if due.newest is None else [due.newest]
            missed += due.missed
            known = Schedule(id="0", name="tick", cron=cron, zone=zone, last=due.until, catch_up=600.0)
        assert times.due(known, now) is None
    assert len(set(fired)) == len(fired)
    every = []
    for at in times.after(made, float(begin)):
        if at > now:
            break
        every.append(at)
    assert set(fired) <= set(every)
    if all(step < 60_000 for step in steps):  # more than a thousand at once are not counted
        assert len(fired) + missed == len(every)


def test_a_long_absence_costs_a_bounded_look_and_the_newest_time_counts():
    made = Schedule(id="0", name="tick", cron="* * * * *", last=0.0)
    due = times.due(made, 40 * 365 * 86_400.0 + 30)
    assert due is not None
    assert due.newest == 40 * 365 * 86_400.0
    assert due.missed >= times.COUNTED


def test_jitter_is_the_same_for_a_name_and_moves_the_job_and_not_its_name():
    made = Schedule(id="0", name="tick", every=100.0, start="1970-01-01T00:00:00Z", jitter=60.0)
    shift = times.offset(made)
    assert 0 < shift < 60
    assert times.due(made, 100 + shift - 1) is None
    due = times.due(made, 100 + shift)
    assert due is not None
    assert times.stamp(due.newest or 0) == "19700101000140"


def test_a_period_that_only_another_hand_can_write_is_refused_and_blocks_no_farm() -> None:
    with pytest.raises(InputInvalid, match="every: found -1 s, expected at least 1 s"):
        next(times.after(Schedule(id="0", name="tick", every=-1.0), 1e9))
