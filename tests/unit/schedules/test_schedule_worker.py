"""Farms make the jobs of schedules in virtual time: each time once, whichever farm falls at which write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from farmd.commands.mutation import Call, commit
from farmd.jobs.commands import JOB as JOBS
from farmd.jobtemplates.commands import FILE as JOB_TEMPLATES
from farmd.jobtemplates.commands import JOB_TEMPLATE
from farmd.schedules import commands
from farmd.schedules.commands import FILE, SCHEDULE
from store import codec
from store.entry import Entry
from store.errors import InputInvalid
from store.features import ARTIFACTS
from store.jobs import Job, Run
from store.keys import is_sentinel
from store.manifests import Manifest
from store.schedules import Schedule, ScheduleStatus
from tests.effort import first
from tests.node_farms import FATES, KEYS, Fall, Fleet, fleet_of

PERIOD = 20.0
JOB = {"types": [{"name": "w", "restart": "never", "pod": {"id": "tick", "command": ["date"]}}]}


class Times:
    """A schedule in a cluster whose jobs end after ``lasts`` seconds, as somebody says."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clock = fleet, fleet.clock
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")
        self.lasts: Callable[[Job], float] = lambda _: 5.0
        self.outcome = "succeeded"
        self.seen: dict[str, Job] = {}

    async def create(self, **fields: Any) -> None:
        spec = FILE.parse({"name": "tick", "every": PERIOD, "job": JOB, **fields}, "tick.yaml")
        await commit(self.call, await SCHEDULE.create(self.call, spec))
        await self.clock.advance(0.2)

    async def schedule(self) -> Schedule:
        return (await SCHEDULE.records(self.fleet.client, KEYS).find("tick")).record

    async def status(self) -> ScheduleStatus | None:
        entry = await self.fleet.client.read(KEYS.status("schedules", (await self.schedule()).id))
        return None if entry is None else codec.decode(ScheduleStatus, entry.value, entry.key)

    async def jobs(self) -> dict[str, Job]:
        page = await self.fleet.client.list(KEYS.tree("jobs"))
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        found = {each.name: each for each in (codec.decode(Job, e.value, e.key) for e in entries)}
        self.seen |= found
        return found

    async def act(self) -> None:
        """End jobs, and take those away that are deleted, until cancelled."""
        while True:
            await self.clock.sleep(1.0)
            for job in (await self.jobs()).values():
                run = Run(job=job.id, outcome=self.outcome, finished=self.clock.now())  # type: ignore[arg-type]
                if job.deleting:
                    for key in (
                        KEYS.record("jobs", job.id),
                        KEYS.name("jobs", job.name),
                        KEYS.record("runs", job.id),
                    ):
                        await self.fleet.client.delete(key)
                elif self.clock.now() - job.created >= self.lasts(job):
                    await self.fleet.put(KEYS.record("runs", job.id), run)

    async def until(self, done: Callable[[], Awaitable[Any]], within: float = 400.0) -> Any:
        for _ in range(int(within)):
            if found := await done():
                return found
            await self.clock.advance(1.0)
        raise AssertionError(f"not within {within:g} s: {await self.schedule()}")


@asynccontextmanager
async def times(*, farms: int = 1) -> AsyncIterator[Times]:
    async with fleet_of() as fleet:
        made = Times(fleet)
        acting = asyncio.create_task(made.act())
        for number in range(farms):
            await fleet.start(f"f{number}", kinds=("schedules",))
        try:
            yield made
        finally:
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting


async def judged(made: Times) -> None:
    """Each time up to ``last`` has exactly one job, or was told as missed or skipped."""
    await made.jobs()
    found = await made.schedule()
    begun = found.created
    due = round((found.last - begun) / PERIOD)
    names = [each.name for each in found.fired if not each.by]
    assert len(set(names)) == len(names)
    assert set(names) == made.seen.keys()
    assert len(names) + found.missed + found.skipped == due
    assert found.failures == 0


async def falls(kind: str, fate: str, k: int) -> bool:
    """Whether a schedule has a k-th transaction of that kind within its first six times."""
    async with times() as made:
        made.lasts = lambda job: 30.0 if job.name.endswith(("20", "40")) else 5.0
        fall = Fall(made.fleet.farms["f0"], fate, k, kind)
        await made.create(keep={"done": 100})

        async def done() -> bool:
            if fall.reached.is_set():
                return True
            found = await SCHEDULE.records(made.fleet.client, KEYS).list()
            return bool(found.items) and len(found.items[0].record.fired) >= 4

        await made.until(done)
        if not fall.reached.is_set():
            return False
        if fate.startswith("killed"):
            await made.fleet.crash("f0")
        await made.fleet.start("f1", kinds=("schedules",))
        await made.clock.advance(60)
        fall.released.set()

        async def more() -> bool:
            return len((await made.schedule()).fired) >= 6

        await made.until(more)
        await judged(made)
        return True


@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("kind", ["jobs", "schedules"])
async def test_r38_each_time_has_one_job_or_is_told_whichever_farm_falls_at_which_transaction(
    kind: str, fate: str
):
    k = 1
    while await falls(kind, fate, k):
        k += 1
    assert k > 3


async def test_r38_after_a_restore_the_newest_time_counts_within_catch_up_and_the_others_are_missed():
    async with times() as made:
        await made.create(catch_up=1.5 * PERIOD, keep={"done": 100})

        async def fired() -> bool:
            return len((await made.schedule()).fired) >= 2

        await made.until(fired)
        before = await made.schedule()
        await made.clock.advance(10 * PERIOD)
        for job in (await made.jobs()).values():  # a snapshot from before has none of them
            if job.name not in {each.name for each in before.fired}:
                for key in (
                    KEYS.record("jobs", job.id),
                    KEYS.name("jobs", job.name),
                    KEYS.record("runs", job.id),
                ):
                    await made.fleet.client.delete(key)
        now, made.seen = made.clock.now(), {}
        await made.fleet.put(KEYS.record("schedules", before.id), before)
        await made.clock.advance(2.0)
        found = await made.schedule()
        assert now - PERIOD - 2.0 < found.last <= now + 2.0
        assert len(found.fired) == len(before.fired) + 1
        assert found.missed == before.missed + round((found.last - before.last) / PERIOD) - 1
        await judged(made)


async def test_an_idle_schedule_costs_no_request_until_its_time():
    async with times() as made:
        await made.create(every="1h")
        await made.clock.advance(120)
        sent = 0
        farm = made.fleet.farms["f0"]

        async def count(request: Any) -> None:
            nonlocal sent
            sent += "schedules" in request.path or "runs" in request.path or "jobs" in request.path

        before, farm.faults.before = farm.faults.before, count
        await made.clock.advance(20)
        farm.faults.before = before
        assert sent == 0


async def test_a_due_time_costs_one_transaction_and_no_read_before_its_status_is_written():
    async with times() as made:
        made.lasts = lambda _: 0.5  # it has ended before the next time
        await made.create(overlap="allow")

        async def begun() -> bool:
            return bool((await made.schedule()).fired)

        await made.until(begun)
        await made.clock.advance(5.0)
        sent: list[str] = []

        async def note(request: Any) -> None:
            if any(part in request.path for part in ("/meta/cluster", "/names/", "/runs/")):
                sent.append(request.path)

        made.fleet.farms["f0"].faults.before = note
        due = (await made.schedule()).last + PERIOD
        await made.clock.advance(due - made.clock.now() + 0.5)
        assert (await made.schedule()).last == due
        assert sent == []


@pytest.mark.parametrize("slow", [3.0, 30.0])
async def test_statuses_wait_for_the_jobs_of_all_schedules_that_are_due_but_not_for_long(slow: float):
    async with times() as made:
        for number in range(8):
            await made.create(name=f"tick-{number}", start="1970-01-01T00:00:00Z")
        sent: list[tuple[float, str]] = []

        async def note(request: Any) -> None:
            if request.path == "/v1/txn":
                what = "job" if b"/names/jobs/" in request.body else "status"
                if what == "job" and not sent:
                    sent.append((0.0, "slow"))
                    await made.clock.sleep(slow)
                sent.append((made.clock.now() - due, what))

        due = (made.clock.now() // PERIOD + 1) * PERIOD
        await made.clock.advance(due - made.clock.now() - 1.0)
        made.fleet.farms["f0"].faults.before = note
        await made.clock.advance(15.0)
        first = min(at for at, what in sent if what == "status")
        assert slow <= first < slow + 3.0 if slow < 10.0 else 10.0 <= first < 12.0


async def test_a_name_that_another_job_has_is_told_as_a_skipped_time():
    async with times() as made:
        await made.create()
        due = (await made.schedule()).created + PERIOD
        name = commands.job_spec("tick", JOB, due, "tick").name
        other = Job(id="0" * 16, name=name, created=made.clock.now())
        await made.fleet.put(KEYS.record("jobs", other.id), other)
        await made.fleet.put(KEYS.name("jobs", name), other.id)

        async def skipped() -> bool:
            found = await made.schedule()
            return found.skipped == 1 and found.last == due and not found.fired

        await made.until(skipped, within=60.0)


async def test_the_end_of_the_last_job_that_succeeded_is_a_metric_of_schedules_that_ask_for_it():
    metric = "farmd_schedule_last_success_timestamp_seconds"
    async with times() as made:
        registry = made.fleet.farms["f0"].registry
        await made.create(export_success=True, keep={"done": 0})
        await made.create(name="quiet")

        async def succeeded() -> float:
            return (await made.schedule()).succeeded

        await made.until(succeeded)
        made.outcome, at = "failed", await succeeded()
        await made.clock.advance(3 * PERIOD)
        assert await succeeded() == at
        assert registry.get_sample_value(metric, {"item": "tick"}) == at
        assert registry.get_sample_value(metric, {"item": "quiet"}) is None
        await commit(made.call, await SCHEDULE.delete(made.call, "tick", cascade=True))
        await made.clock.advance(5.0)
        assert registry.get_sample_value(metric, {"item": "tick"}) is None


def test_a_schedule_needs_farms_that_know_what_its_jobs_need():
    artifact = {"source": "https://example.com/x", "sha256": "0" * 64, "to": "x"}
    pod = {"id": "tick", "command": ["date"], "artifacts": [artifact]}
    job = {"types": [{"name": "w", "restart": "never", "pod": pod}], "needs": ["own.1"]}
    spec = FILE.parse({"name": "tick", "every": PERIOD, "job": job}, "tick.yaml")
    made = FILE.build(spec, "0")
    assert made.needs == ["own.1", ARTIFACTS]
    assert JOBS.file.build(JOBS.file.parse({**job, "name": "a"}, "a"), "0").needs == ["own.1", ARTIFACTS]
    plain = FILE.build(FILE.parse({"name": "tick", "every": PERIOD, "job": JOB}, "tick.yaml"), "0")
    assert plain.needs == []


async def test_jobs_that_fail_are_told_and_a_good_one_ends_that():
    async with times() as made:
        made.outcome = "failed"
        await made.create()

        firing = made.fleet.farms["f0"].alerts.firing

        async def told() -> list[str]:
            return [key for key in firing if key.startswith("schedule_failing_")]

        async def ended() -> bool:
            return not await told()

        await made.until(told)
        status = await made.status()
        assert status is not None
        assert status.state == "failing"
        made.outcome = "succeeded"
        await made.until(ended)


async def test_old_jobs_are_deleted_and_those_that_run_at_their_time_replaced():
    async with times() as made:
        made.lasts = lambda job: 500.0 if len(made.seen) == 1 else 5.0
        await made.create(overlap="replace", keep={"done": 1, "failed": 1})

        async def settled() -> bool:
            found = await made.schedule()
            return len(made.seen) >= 5 and [each.outcome for each in found.fired][:2] == [
                "replaced",
                "succeeded",
            ]

        await made.until(settled)
        assert len(await made.jobs()) <= 3


async def test_a_person_makes_a_job_at_once_pauses_and_resumes():
    async with times() as made:
        await made.create(every="1h")
        await commit(made.call, await commands.run_now(made.call, "tick"))
        assert (await made.schedule()).fired[0].by == "user/ada@host"
        await commit(made.call, await commands.pause(made.call, "tick"))
        await made.clock.advance(4000)
        assert len(made.seen) == 1
        await commit(made.call, await commands.resume(made.call, "tick"))

        async def caught_up() -> bool:
            return len((await made.schedule()).fired) == 2

        await made.until(caught_up)
        await commit(made.call, await SCHEDULE.delete(made.call, "tick", cascade=True))

        async def gone() -> bool:
            return not (await SCHEDULE.records(made.fleet.client, KEYS).list()).items

        await made.until(gone)


TEMPLATE = {
    "name": "greet",
    "parameters": {"whom": {"required": True}, "times": {"type": "integer", "default": 1}},
    "job": {
        "types": [
            {
                "name": "w",
                "restart": "never",
                "pod": {
                    "id": "greet",
                    "command": ["env"],
                    "env": {"WHOM": "${param.whom}", "TIMES": "${param.times}"},
                },
            }
        ]
    },
}


async def test_a_schedule_makes_jobs_of_a_template_as_it_is_then_and_skips_times_without_it():
    async with times() as made:
        spec = JOB_TEMPLATES.parse(TEMPLATE, "greet.yaml")
        await made.create(job={}, template="greet", params={"whom": "Ada", "times": 3}, overlap="allow")

        async def skipped() -> bool:
            return (await made.schedule()).skipped >= 1

        await made.until(skipped)
        assert "does not exist" in (await made.fleet.audits("schedule.skip"))[0].reason
        await commit(made.call, await JOB_TEMPLATE.create(made.call, spec))

        async def begun() -> bool:
            return len((await made.schedule()).fired) >= 2

        await made.until(begun)
        job = made.seen[(await made.schedule()).fired[0].name]
        sha = job.types[0].manifest
        manifest = await made.fleet._read(Manifest, KEYS.manifest(sha))
        assert manifest.env == {"WHOM": "Ada", "TIMES": "3"}
        assert (await made.schedule()).needs == ["jobtemplates.1"]
        await commit(made.call, await JOB_TEMPLATE.disable(made.call, "greet"))
        before = (await made.schedule()).skipped

        async def skipped_again() -> bool:
            return (await made.schedule()).skipped > before

        await made.until(skipped_again)
        await judged(made)
        with pytest.raises(InputInvalid, match="is disabled"):
            await commands.run_now(made.call, "tick")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"job": JOB, "template": "greet"}, "found both job and template"),
        ({}, "found neither job nor template"),
        ({"job": JOB, "params": {"a": 1}}, "found values beside a job"),
        ({"template": "Greet!"}, "template: found 'Greet!'"),
    ],
)
def test_a_schedule_has_a_job_or_a_template(fields: dict[str, Any], told: str):
    with pytest.raises(InputInvalid) as caught:
        FILE.parse({"name": "tick", "every": PERIOD, **fields}, "tick.yaml")
    assert told in caught.value.message
