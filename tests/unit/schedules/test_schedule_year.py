"""A year of schedules in virtual time: farms fall at random transactions, and no time is lost or doubled."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from operator import ge, gt
from typing import Any, Literal

import pytest

from farmd.commands.mutation import Call, commit
from farmd.schedules import kind, times
from farmd.schedules.commands import FILE, SCHEDULE
from store import codec
from store.entry import Entry
from store.jobs import Job, Run
from store.keys import is_sentinel
from store.schedules import Schedule
from tests.node_farms import FATES, KEYS, Fall, Fleet, fleet_of

BEGIN = datetime(2027, 12, 31, 12, tzinfo=UTC).timestamp()
END = datetime(2029, 1, 1, tzinfo=UTC).timestamp()
JOB = {"types": [{"name": "w", "restart": "never", "pod": {"id": "tick", "command": ["date"]}}]}
SCHEDULES: dict[str, dict[str, Any]] = {
    "berlin": {"cron": "30 2 * * *", "zone": "Europe/Berlin"},
    "berlin-dst": {"cron": "*/30 * 26,29 3,10 *", "zone": "Europe/Berlin", "overlap": "allow"},
    "new-york": {"cron": "30 1 * * *", "zone": "America/New_York", "overlap": "replace", "jitter": "5m"},
    "lord-howe": {"cron": "15 2 * * 0", "zone": "Australia/Lord_Howe", "overlap": "allow"},
    "leap-day": {"cron": "0 0 29 2 *"},
    "monthly": {"cron": "@monthly", "zone": "Asia/Kathmandu", "catch_up": 0},
    "every": {"every": 100_000, "jitter": "1h", "catch_up": "1h"},
}
OUTAGES = (0.0, 300.0, 3600.0, 2 * 86_400.0)
FALLS = 0.05
"""The share of due times at which a farm falls."""


Outcome = Literal["", "succeeded", "failed"]


class Year:
    """Schedules, the farms that work on them, and jobs that end when the dice say so."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.clock, self.dice = fleet, fleet.clock, random.Random(seed)
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")
        self.farms, self.fell = 0, Counter[str]()

    async def create(self) -> None:
        for name, fields in SCHEDULES.items():
            spec = FILE.parse({"name": name, "job": JOB, **fields}, "year.yaml")
            await commit(self.call, await SCHEDULE.create(self.call, spec))

    async def schedules(self) -> list[Schedule]:
        return [each.record for each in (await SCHEDULE.records(self.fleet.client, KEYS).list()).items]

    async def start(self) -> None:
        self.farms += 1
        await self.fleet.start(f"f{self.farms}", kinds=("schedules",))

    async def tend(self) -> None:
        """End most of the jobs, and take away those that are deleted."""
        page = await self.fleet.client.list(KEYS.tree("jobs"))
        for entry in [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]:
            job = codec.decode(Job, entry.value, entry.key)
            run = KEYS.record("runs", job.id)
            if job.deleting:
                for gone in (entry.key, KEYS.name("jobs", job.name), run):
                    await self.fleet.client.delete(gone)
            elif self.dice.random() < 0.7:
                outcome: Outcome = "failed" if self.dice.random() < 0.3 else "succeeded"
                await self.fleet.put(run, Run(job=job.id, outcome=outcome, finished=self.clock.now()))

    async def pass_by(self, at: float) -> None:
        """Let a due time come, at which the farm may fall at its next transaction of a kind."""
        self.clock.set_ahead(max(0.0, at - 0.5 - self.clock.now()))
        if self.dice.random() >= FALLS:
            await self.clock.advance(2.5)
            return
        (name,) = self.fleet.farms
        fate = self.dice.choice(FATES)
        fall = Fall(
            self.fleet.farms[name], fate, self.dice.choice((1, 1, 2)), self.dice.choice(("jobs", "schedules"))
        )
        await self.clock.advance(2.5)
        if fall.reached.is_set():
            self.fell[fate] += 1
        self.clock.set_ahead(self.dice.choice(OUTAGES))
        held = self.fleet.farms[name]
        if fate.startswith("killed"):
            await self.fleet.crash(name)
        await self.start()
        await self.clock.advance(60.0)
        fall.released.set()
        await self.clock.advance(5.0)
        if held is self.fleet.farms.get(name):
            await self.fleet.end(name)
            await self.clock.advance(40.0)

    async def judge(self) -> None:
        """Each time up to ``last`` had exactly one job by the audit, or counts as missed or skipped."""
        page = await self.fleet.client.list(KEYS.tree("audit"))
        audits = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        created = Counter(
            str(each["name"])
            for each in (codec.decode(dict, entry.value, entry.key) for entry in audits)
            if each["action"] == "job.create"
        )
        assert {name: count for name, count in created.items() if count > 1} == {}
        for each in await self.schedules():
            due = list(takewhile(partial(ge, each.last), times.after(each, each.created)))
            named = {f"{each.name}-{times.stamp(at)}" for at in due}
            mine = {name for name in created if name.rpartition("-")[0] == each.name}
            assert mine <= named
            assert len(mine) + each.missed + each.skipped == len(due), each
            assert each.last + times.offset(each) >= END - 40 * 86_400.0 or each.name in (
                "leap-day",
                "berlin-dst",
            )


async def test_r38_in_a_year_each_time_has_one_job_or_is_told_while_farms_fall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, "LONGEST", 1.0)  # the wall clock is set ahead over all idle stretches
    async with fleet_of() as fleet:
        fleet.clock.set_ahead(BEGIN - fleet.clock.now())
        year = Year(fleet, seed=1)
        await year.create()
        await year.start()
        await fleet.clock.advance(5.0)
        ahead = [
            at + times.offset(each)
            for each in await year.schedules()
            for at in takewhile(partial(gt, END), times.after(each, each.created))
        ]
        for at in sorted(ahead):
            if at > fleet.clock.now():
                await year.pass_by(at)
                await year.tend()
        await fleet.clock.advance(60.0)
        assert all(year.fell[fate] for fate in FATES), year.fell
        await year.judge()
