"""Farms answer starts in virtual time: each key has one answer and one job, whichever farm falls where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farmd.commands.mutation import Call, commit
from farmd.jobtemplates import kind
from farmd.jobtemplates.commands import FILE, JOB_TEMPLATE, begin, start_of
from farmd.jobtemplates.kind import expired, fair
from store import codec, families
from store.entry import Entry
from store.errors import Conflict
from store.jobs import Job
from store.jobtemplates import STARTED, STARTS, JobStart, Started, StartKey
from store.keys import is_sentinel
from tests.effort import first
from tests.node_farms import FATES, KEYS, Fall, Fleet, fleet_of

DOCUMENT: dict[str, Any] = {
    "name": "echo",
    "parameters": {"text": {"required": True}},
    "job": {
        "types": [
            {
                "name": "w",
                "restart": "never",
                "pod": {"id": "echo", "command": ["env"], "env": {"TEXT": "${param.text}"}},
            }
        ]
    },
}


class Starts:
    """A template in a cluster, and somebody who starts its jobs."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clock = fleet, fleet.clock
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")

    async def create(self, **fields: Any) -> None:
        await commit(
            self.call,
            await JOB_TEMPLATE.create(self.call, FILE.parse({**DOCUMENT, **fields}, "echo.yaml")),
        )

    async def start(self, key: str, text: str = "x", template: str = "echo") -> Started | None:
        answer, _ = await begin(self.call, StartKey(template, key), start_of(self.call, {"text": text}, b""))
        await self.clock.settle()
        return answer

    async def read(self, kind: Any, tree: str) -> dict[str, Any]:
        page = await self.fleet.client.list(KEYS.tree(tree))
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return {
            each.key.removeprefix(KEYS.tree(tree)): codec.decode(kind, each.value, "") for each in entries
        }

    async def jobs(self) -> dict[str, Job]:
        return {job.name: job for job in (await self.read(Job, "jobs")).values()}

    async def answers(self) -> dict[str, Started]:
        return await self.read(Started, STARTED)

    async def waiting(self) -> list[str]:
        page = await self.fleet.client.keys(KEYS.tree(STARTS))
        return [key for key in page.items if key != KEYS.sentinel(KEYS.tree(STARTS))]

    async def settled(self, within: float = 300.0) -> None:
        for _ in range(int(within)):
            if not await self.waiting():
                return
            await self.clock.advance(1.0)
        raise AssertionError(await self.waiting())


@asynccontextmanager
async def starts(*, farms: int = 1, template: bool = True) -> AsyncIterator[Starts]:
    async with fleet_of() as fleet:
        made = Starts(fleet)
        for number in range(farms):
            await fleet.start(f"f{number}", kinds=("jobtemplates",))
        if template:
            await made.create()
        yield made


async def judged(made: Starts, *keys: str) -> None:
    """Each start has one answer and its one job, and none waits."""
    answers, jobs = await made.answers(), await made.jobs()
    assert answers.keys() == {f"echo/{key}" for key in keys}
    assert {answer.name for answer in answers.values()} == jobs.keys()
    assert len(jobs) == len(keys)
    for answer in answers.values():
        assert jobs[answer.name].id == answer.job
    made_so = await made.fleet.audits("job.create")
    assert sorted(each.name for each in made_so) == sorted(jobs)


async def falls(fate: str, k: int) -> bool:
    """Whether three starts take a k-th transaction, at which a farm falls."""
    async with starts() as made:
        fall = Fall(made.fleet.farms["f0"], fate, k, "jobs")
        for key in ("a", "b", "c"):
            await made.start(key)
        for _ in range(10):
            await made.clock.advance(1.0)
        if not fall.reached.is_set():
            return False
        if fate.startswith("killed"):
            await made.fleet.crash("f0")
        await made.fleet.start("f1", kinds=("jobtemplates",))
        await made.clock.advance(60)
        fall.released.set()
        await made.settled()
        await made.clock.advance(5)
        await judged(made, "a", "b", "c")
        return True


@pytest.mark.parametrize("fate", first(1, FATES))
async def test_r44_each_start_makes_one_job_whichever_farm_falls_at_which_transaction(fate: str) -> None:
    k = 1
    while await falls(fate, k):
        k += 1
    assert k > 3


async def test_a_key_that_was_answered_starts_nothing_again_also_when_its_job_is_gone() -> None:
    async with starts() as made:
        await made.start("a")
        await made.settled()
        (job,) = (await made.jobs()).values()
        for key in (KEYS.record("jobs", job.id), KEYS.name("jobs", job.name), KEYS.record("runs", job.id)):
            await made.fleet.client.delete(key)
        again = await made.start("a")
        assert again is not None
        assert again.name == job.name
        with pytest.raises(Conflict, match="other parameters"):
            await made.start("a", "y")
        # A starter that asks nobody writes the start once more: it is dropped.
        await made.fleet.put(StartKey("echo", "a").start(KEYS), JobStart(params={"text": "z"}))
        await made.settled()
        assert await made.jobs() == {}
        assert (await made.answers())["echo/a"] == again


async def test_what_does_not_fit_is_refused_with_a_reason_and_may_be_repeated() -> None:
    async with starts(template=False) as made:
        await made.start("a")
        await made.settled()
        assert (await made.answers())["echo/a"].refused == "job template 'echo' does not exist"
        await made.create(disabled=True)
        await made.start("a")
        await made.settled()
        assert (await made.answers())["echo/a"].refused == "job template 'echo' is disabled"
        await commit(made.call, await JOB_TEMPLATE.enable(made.call, "echo"))
        await made.start("a")
        await made.settled()
        await judged(made, "a")


async def test_what_nobody_may_write_there_is_taken_away_and_hinders_nobody() -> None:
    async with starts() as made:
        tree = KEYS.tree(STARTS)
        odd = ["echo/a/b", "x", "echo/x.present", "Echo/a", "echo/ ", "echo/", "echo/\u00e4", f"{'y' * 60}/k"]
        for each in odd:
            await made.fleet.client.put(f"{tree}{each}", b"{}")
        await made.fleet.client.put(f"{tree}echo/garbage", b"\xff\xfe")
        await made.fleet.client.put(f"{tree}echo/large", b'{"by":"' + b"x" * 450_000 + b'"}')
        await made.start("good")
        await made.settled()
        answers = await made.answers()
        assert set(answers) == {"echo/garbage", "echo/large", "echo/good"}
        assert answers["echo/large"].refused.startswith("found 450009 bytes")
        assert answers["echo/garbage"].refused
        assert list(await made.jobs()) == [answers["echo/good"].name]
        assert not made.fleet.farms["f0"].farm.caches.doubted()


async def test_a_job_of_that_name_is_left_alone() -> None:
    async with starts() as made:
        place = StartKey("echo", "a")
        other = Job(id="0a", name=place.job)
        await made.fleet.put(KEYS.record("jobs", "0a"), other)
        await made.fleet.put(KEYS.name("jobs", place.job), "0a")
        await made.start("a")
        await made.settled()
        assert "exists and differs" in (await made.answers())["echo/a"].refused
        assert (await made.jobs()) == {place.job: other}


async def test_a_template_that_is_changed_meanwhile_makes_the_job_of_its_newest_version() -> None:
    async with starts() as made:
        farm, changed = made.fleet.farms["f0"], False

        async def meanwhile(request: Any) -> None:
            nonlocal changed
            if request.path == "/v1/txn" and b"names/jobs" in request.body and not changed:
                changed = True
                spec = FILE.parse({**DOCUMENT, "job": NEWER}, "echo.yaml")
                await commit(made.call, await JOB_TEMPLATE.update(made.call, spec, now=True))

        farm.faults.before = meanwhile
        await made.start("a")
        await made.settled()
        assert changed
        (job,) = (await made.jobs()).values()
        assert [each.name for each in job.types] == ["newer"]
        await judged(made, "a")


NEWER = {"types": [{**DOCUMENT["job"]["types"][0], "name": "newer"}]}


async def test_a_starter_that_rewrites_its_start_all_the_time_holds_up_nobody() -> None:
    async with starts() as made:
        farm, busy = made.fleet.farms["f0"], StartKey("echo", "a").start(KEYS)
        count = 0

        async def meanwhile(request: Any) -> None:
            nonlocal count
            if request.path == "/v1/txn" and busy.encode() in request.body and count < 20:
                count += 1
                await made.fleet.put(busy, JobStart(params={"text": str(count)}))

        farm.faults.before = meanwhile
        for key in "abcd":
            await made.start(key)
        for _ in range(8):
            await made.clock.advance(0.25)
        assert {"echo/b", "echo/c", "echo/d"} <= (await made.answers()).keys()
        await made.settled()
        await judged(made, *"abcd")


async def test_an_idle_farm_sends_nothing_but_its_parked_query() -> None:
    async with starts() as made:
        await made.clock.advance(120)
        sent: list[str] = []

        async def note(request: Any) -> None:
            if STARTS in request.path or STARTED in request.path or "jobtemplates" in request.path:
                sent.append(request.path)

        made.fleet.farms["f0"].faults.before = note
        await made.clock.advance(50)
        assert len(sent) <= 2, "one wait ends, and the statuses are looked at"


async def test_old_answers_go_and_young_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "MOST_KEPT", 3)
    monkeypatch.setattr(kind, "KEPT_SECONDS", 3600.0)
    async with starts() as made:
        for key in "abcdef":
            await made.start(key)
            await made.settled()
            await made.clock.advance(30)
        assert len(await made.answers()) == 6
        await made.clock.advance(1300)
        assert (await made.answers()).keys() == {f"echo/{key}" for key in "def"}
        await made.clock.advance(3600)
        assert await made.answers() == {}


def test_templates_take_turns() -> None:
    tree = KEYS.tree(STARTS)
    found = fair(KEYS, [f"{tree}a/1", f"{tree}a/2", f"{tree}a/3", f"{tree}b/1", f"{tree}c/1"])
    assert [key.removeprefix(tree) for key in found] == ["a/1", "b/1", "c/1", "a/2", "a/3"]


def test_refusals_of_all_templates_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "MOST_KEPT", 2)
    answers = [Started(refused="no", at=1000.0 - at * 100) for at in range(4)]
    told = [Entry(f"{KEYS.tree(STARTED)}t{at}/a", codec.encode(each), 1) for at, each in enumerate(answers)]
    assert expired(told, KEYS, 1100.0) == told[2:]
    accepted = [Entry(each.key, codec.encode(Started(job="0a", at=500.0)), 1) for each in told]
    assert expired(accepted, KEYS, 1100.0) == []


def test_answers_that_this_version_cannot_read_stay() -> None:
    entry = Entry(f"{KEYS.tree(STARTED)}echo/a", b'{"at":"later"}', 1)
    assert expired([entry], KEYS, 1e12) == []


def test_nobody_watches_templates_and_starts_prove_nothing() -> None:
    assert not families.FAMILIES["jobtemplates"].cached
    assert not families.FAMILIES[STARTS].cached
    assert families.FAMILIES[STARTS].proven
