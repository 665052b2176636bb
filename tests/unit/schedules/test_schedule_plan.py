"""What a schedule does at its times: overlap, missed times, pauses, freezes, and which jobs it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.schedules.plan import End, Plan, Snapshot, decide, state
from store.schedules import Fired, Keep, Schedule


def schedule(**fields: Any) -> Schedule:
    start = {"every": 100.0, "start": "1970-01-01T00:00:00Z", "last": 1000.0}
    made = Schedule(id="0", name="tick", **(start | fields))
    return Schedule(**{name: getattr(made, name) for name in made.__struct_fields__} | {"timing": made.times})


def fired(due: float, outcome: str = "", **fields: Any) -> Fired:
    return Fired(due=due, job=f"j{due:g}", name=f"tick-{due:g}", outcome=outcome, **fields)  # type: ignore[arg-type]


def plan(made: Schedule, now: float, ends: dict[str, End] | None = None, frozen: str | None = None) -> Plan:
    return decide(Snapshot(made, now, ends or {}, frozen))


def test_a_time_that_has_come_makes_its_job_and_moves_last():
    found = plan(schedule(), 1100.5)
    assert (found.action, found.fire, found.wanted and found.wanted.last) == (
        "schedule.start",
        1100.0,
        1100.0,
    )


def test_before_its_time_it_sleeps_until_then():
    found = plan(schedule(), 1050.0)
    assert (found.empty, found.next, found.upcoming) == (True, 1100.0, 1100.0)


def test_of_times_that_were_missed_the_newest_counts_within_catch_up_and_others_are_told():
    found = plan(schedule(catch_up=250.0), 1590.0)
    assert (found.fire, found.wanted and found.wanted.missed, found.wanted and found.wanted.missing) == (
        1500.0,
        4,
        4,
    )
    assert "4 times were missed" in found.why
    late = plan(schedule(catch_up=50.0), 1590.0)
    assert (late.action, late.fire, late.wanted and late.wanted.missed) == ("schedule.miss", None, 5)
    assert late.wanted is not None
    assert plan(late.wanted, 1590.0).empty


@pytest.mark.parametrize(
    ("overlap", "action", "stop"),
    [
        ("forbid", "schedule.skip", ()),
        ("allow", "schedule.start", ()),
        ("replace", "schedule.stop", ("j1000",)),
    ],
)
def test_a_time_while_a_job_runs(overlap: str, action: str, stop: tuple[str, ...]):
    found = plan(schedule(overlap=overlap, fired=[fired(1000.0)]), 1101.0)
    assert (found.action, found.stop) == (action, stop)


def test_a_schedule_with_as_many_jobs_as_may_run_skips_its_times_and_says_so():
    jobs = [fired(float(at)) for at in range(901, 1001)]
    full = schedule(overlap="allow", fired=jobs)
    found = plan(full, 1101.0)
    assert (found.action, found.fire) == ("schedule.skip", None)
    assert (found.wanted and found.wanted.skipped, "100 of its jobs run still" in found.why) == (1, True)
    idle = plan(full, 1050.0)
    assert state(full, idle) == ("overrun", "100 of its jobs run, so its times are skipped until one ends")
    assert plan(schedule(overlap="allow", fired=jobs[1:]), 1101.0).action == "schedule.start"
    replaced = plan(schedule(overlap="replace", fired=jobs), 1101.0)
    assert (replaced.action, len(replaced.stop)) == ("schedule.stop", 10)  # one transaction


def test_a_job_that_is_replaced_is_gone_before_the_next_is_made():
    stopped = plan(schedule(overlap="replace", fired=[fired(1000.0)]), 1101.0).wanted
    assert stopped is not None
    assert plan(stopped, 1102.0).empty
    gone = plan(stopped, 1103.0, {"j1000": End("deleted")})
    assert (gone.action, gone.fire) == ("schedule.start", 1100.0)
    assert gone.wanted is not None
    assert (gone.wanted.fired[0].outcome, gone.wanted.failures) == ("replaced", 0)


def test_a_paused_schedule_makes_nothing_and_notes_how_its_jobs_end():
    paused = schedule(disabled=True, fired=[fired(1000.0)])
    assert plan(paused, 1500.0).empty
    noted = plan(paused, 1500.0, {"j1000": End("failed", "BackoffLimitExceeded", 1400.0)})
    assert noted.wanted is not None
    assert (noted.action, noted.wanted.failures, noted.wanted.last) == ("schedule.end", 1, 1000.0)


def test_in_a_freeze_nothing_is_written_and_the_status_says_why():
    found = plan(schedule(), 1101.0, frozen="the store was restored")
    assert found.empty
    assert state(schedule(), found) == ("frozen", "frozen: the store was restored")


def test_other_times_count_from_when_they_were_given():
    made = Schedule(id="0", name="tick", cron="@daily", last=5.0, timing="0 6 * * * UTC")
    begun = plan(made, 500_000.0).wanted
    assert begun is not None
    assert (begun.last, begun.timing) == (500_000.0, made.times)


def test_old_jobs_go_good_and_bad_ones_apart_and_never_one_that_runs():
    bad = [fired(200.0 + at, "failed") for at in range(2)]
    made = schedule(keep=Keep(done=1, failed=2), fired=[fired(1.0), fired(2.0, "succeeded"), *bad])
    assert plan(made, 1050.0).empty
    more = schedule(keep=Keep(done=1, failed=1), fired=made.fired)
    found = plan(more, 1050.0)
    assert (found.action, found.stop) == ("schedule.prune", ("j200",))


def test_states_tell_of_jobs_that_fail_run_too_long_or_were_not_made():
    failing = schedule(failures=2, fired=[fired(1000.0, "failed", reason="exit 1")])
    assert state(failing, Plan()) == ("failing", "2 jobs in a row failed: tick-1000: exit 1")
    slow = schedule(fired=[fired(900.0)])
    assert state(slow, plan(slow, 1050.0))[0] == "overrun"
    assert state(schedule(missing=3), Plan())[0] == "missed"
    assert state(schedule(), Plan()) == ("converged", "")


def test_a_record_that_this_version_cannot_read_blocks_and_names_the_field():
    made = schedule(every=None, cron="not a time", start="")
    found = plan(made, 1101.0)
    assert found.blocked is not None
    assert "cron" in found.blocked.text
