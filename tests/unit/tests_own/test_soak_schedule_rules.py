"""The rules of the soak for schedules and rollouts over nodes notice what they are there for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from store import codec
from store.audit import Audit
from store.daemonsets import DaemonSet
from store.entry import Entry
from store.jobs import Job, Run
from store.keys import Keys
from store.pods import Pod
from store.schedules import Fired, Schedule
from tests.fault.invariants import Dump
from tests.soak import schedules, spreads
from tests.soak.sight import Sight

KEYS = Keys()
BEGUN = 1_800_000_000.0
TICK = Schedule(
    id="5c", name="tick", every=10.0, created=BEGUN, last=BEGUN + 30.0, timing="every 10 s", missed=1
)
NAMES = ("tick-20270115080010", "tick-20270115080020")
SET = DaemonSet(
    id="d5", name="logs", manifest="a" * 64, coming="b" * 64, managed_by="rollouts/7", coming_to=2
)
NODES = ("n1", "n2", "n3", "n4")


def dump(**records: tuple[object, int]) -> Dump:
    entries = {
        key: Entry(key=key, value=codec.encode(record), modify_index=at, create_index=at, flags=0, session="")
        for key, (record, at) in records.items()
    }
    return Dump(KEYS, entries)


def times(schedule: Schedule = TICK, names: tuple[str, ...] = NAMES, ended: bool = True) -> Dump:
    fired = [Fired(due=BEGUN, job=name[-4:], name=name) for name in names]
    found: dict[str, tuple[object, int]] = {
        KEYS.record("schedules", "5c"): (msgspec.structs.replace(schedule, fired=fired), 10)
    }
    for number, name in enumerate(names):
        job = name[-4:]
        told = Audit(at=BEGUN, actor="farm/f1", action="job.create", kind="jobs", id=job, name=name)
        found[KEYS.audit("2027-01-15T08", f"{number:011x}-aa")] = (told, 20 + number)
        found[KEYS.record("jobs", job)] = (Job(id=job, name=name), 20 + number)
        found[KEYS.record("runs", job)] = (Run(job=job, outcome="succeeded" if ended else ""), 20 + number)
    return dump(**found)


def test_a_schedule_whose_times_have_a_job_or_are_told_is_fine() -> None:
    assert [*schedules.miscounted(times()), *schedules.overlapping(times())] == []


@pytest.mark.parametrize(
    ("fields", "names", "told"),
    [
        ({"missed": 0}, NAMES, "had 3 times: 2 jobs, 0 missed"),
        ({}, (*NAMES, NAMES[0]), "2 times"),
        ({}, (NAMES[0], "tick-20270115080021"), "at no time"),
    ],
)
def test_a_time_that_is_lost_or_doubled_is_noticed(
    fields: dict[str, Any], names: tuple[str, ...], told: str
) -> None:
    found = list(schedules.miscounted(times(msgspec.structs.replace(TICK, **fields), names)))
    assert any(told in line for line in found), found


def test_jobs_that_run_side_by_side_and_a_last_that_falls_are_noticed() -> None:
    assert list(schedules.overlapping(times(ended=False)))
    assert not list(schedules.overlapping(times(msgspec.structs.replace(TICK, overlap="allow"), ended=False)))
    earlier = times(msgspec.structs.replace(TICK, last=BEGUN + 20.0))
    assert list(schedules.fell(times(), earlier))
    assert not list(schedules.fell(earlier, times()))


def look(new: int, index: int, created: int = 5, **fields: Any) -> Sight:
    found: dict[str, tuple[object, int]] = {
        KEYS.record("daemonsets", "d5"): (msgspec.structs.replace(SET, **fields), index)
    }
    for number, node in enumerate(NODES):
        found[KEYS.pod("d5", node, "logs")] = (Pod(manifest=("b" if number < new else "a") * 64), created)
    return Sight(BEGUN, dump(**found), [], dict.fromkeys(NODES, "a"), {})


def test_a_version_that_is_beyond_its_stage_is_noticed() -> None:
    assert list(spreads.beyond(look(2, 10), look(3, 10), []))
    assert not list(spreads.beyond(look(1, 10), look(2, 10), []))
    assert not list(spreads.beyond(look(3, 10), look(3, 11, coming_to=0), []))
    stage = Audit(
        at=BEGUN, actor="farm/f1", action="rollout.next", kind="rollouts", id="7", after={"to": "75%"}
    )
    assert not list(spreads.beyond(look(2, 10), look(3, 11), [stage]))


def test_a_pod_that_is_replaced_while_its_rollout_is_held_is_noticed() -> None:
    assert list(spreads.beyond(look(1, 10, coming_held=True), look(2, 10, coming_held=True), []))
    joined = look(2, 10, created=12, coming_held=True)
    assert not list(spreads.beyond(look(1, 10, coming_held=True), joined, []))
