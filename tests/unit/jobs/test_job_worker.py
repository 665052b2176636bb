"""Jobs on nodes, as a farm and agents bring them to their end: the embedded server, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from farmd.commands.mutation import Call, Mutation, commit
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.jobs import commands
from farmd.jobs.commands import JOB
from store import codec, manifests
from store.errors import Conflict
from store.jobs import Job, JobStatus, Run, Success, Type
from store.manifests import Manifest
from store.pods import Pod
from store.ports import Request
from store.reality import Exit
from store.work import Work
from tests.fleet import RunningFarm
from tests.job_fleet import GOOD, JobFleet, document, job_fleet
from tests.node_farms import KEYS, base64_of
from tests.toys import is_transaction


async def test_a_batch_runs_each_slot_once_and_succeeds() -> None:
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run()

        async def placed() -> bool:
            return len(jobs.ran) == 2

        await jobs.until(placed)
        jobs.rule = lambda _: 0
        run = await jobs.over(job)
        assert run.outcome == "succeeded"
        assert run.done == {"worker": "0-1"}
        assert sorted(jobs.runs(job)) == ["worker/0~0", "worker/1~0"]
        await jobs.clock.advance(5)
        status = await jobs.status(job)
        assert status is not None
        assert (status.state, status.done, status.desired) == ("succeeded", 2, 2)
        assert all(pod.done for pod in (await jobs.pods(job)).values())


async def test_a_failed_member_is_tried_again_and_counted_once() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda instance: 137 if instance == "bert-worker-1~0" else 0
        job = await jobs.run(worker={"restart": "exit-code"})
        run = await jobs.over(job)
        assert (run.outcome, run.restarts) == ("succeeded", 1)
        assert jobs.runs(job).count("worker/1~1") == 1
        assert jobs.runs(job).count("worker/0~0") == 1
        assert "worker/1~2" not in jobs.runs(job)


async def test_a_low_exit_code_fails_the_job_where_codes_decide() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: Exit(0.0, 3, message="no data")
        job = await jobs.run(worker={"restart": "exit-code"})
        run = await jobs.over(job)
        assert (run.outcome, run.reason) == ("failed", "MemberFailed")
        assert "exit code 3: no data" in run.message


async def test_an_array_has_no_more_members_at_a_time_than_its_parallelism() -> None:
    async with job_fleet("n1", "n2") as jobs:
        jobs.rule = lambda _: 0
        job = await jobs.run(worker={"replicas": 20, "parallelism": 3})
        most = 0

        async def over() -> bool:
            nonlocal most
            most = max(most, sum(not pod.done for pod in (await jobs.pods(job)).values()))
            return bool((await jobs.state(job)).outcome)

        await jobs.until(over, 300)
        assert most == 3
        assert (await jobs.state(job)).done == {"worker": "0-19"}
        assert sorted(set(jobs.runs(job))) == sorted(f"worker/{index}~0" for index in range(20))
        assert len(jobs.ran) == 20


async def array_of_eighty(jobs: JobFleet) -> Job:
    """An array of which the first forty members run."""
    job = await jobs.run(worker={"replicas": 80, "parallelism": 40})
    await running(jobs, 40)
    await jobs.clock.advance(5)
    return job


def ends_early(instance: str) -> int | None:
    """The first forty members end well."""
    return 0 if int(instance.partition("~")[0].rpartition("-")[2]) < 40 else None


async def test_ends_seen_together_are_taken_in_by_one_cycle_however_many_transactions_they_need() -> None:
    async with job_fleet("n1", "n2") as jobs:
        farm, seen = jobs.fleet.farms["f0"], asyncio.Event()
        job = await array_of_eighty(jobs)

        async def see_later(request: Request) -> None:
            if "/reality/" in request.path:
                await seen.wait()

        async def taken() -> bool:
            return (await jobs.state(job)).done == {"worker": "0-39"}

        farm.faults.before = see_later
        await jobs.clock.advance(80)  # the query that is parked now is answered without a change
        jobs.rule = ends_early
        await jobs.clock.advance(5)
        before = cycles(farm)
        seen.set()
        await jobs.until(taken)
        assert cycles(farm) - before < len(await jobs.fleet.audits("job.progress")) == 5
        await running(jobs, 80)
        assert len(jobs.ran) == 80


def cycles(farm: RunningFarm) -> float:
    """How many cycles the workers of jobs have had."""
    return sum(farm.metric("farmd_cycles_total", kind="jobs", result=each) for each in ("done", "after"))


async def test_r12_a_job_that_is_stopped_while_ends_are_taken_in_gets_no_member_any_more() -> None:
    async with job_fleet("n1", "n2") as jobs:
        job, farm, stopped = await array_of_eighty(jobs), jobs.fleet.farms["f0"], asyncio.Event()

        async def stop_after_the_first(request: object, _: object) -> None:
            if not stopped.is_set() and b'"job.progress"' in base64_of(request):
                stopped.set()
                await say(jobs, commands.stop)

        farm.faults.after = stop_after_the_first
        jobs.rule = ends_early

        async def suspended() -> bool:
            return stopped.is_set() and not await jobs.pods(job)

        await jobs.until(suspended)
        later = {index for each in jobs.runs(job) if (index := int(each[7:-2])) >= 40}
        assert len(later) <= 8
        await say(jobs, commands.resume)
        jobs.rule = lambda _: 0
        assert (await jobs.over(job)).done == {"worker": "0-79"}


async def test_a_job_is_deleted_when_its_ttl_is_over() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: 0
        job = await jobs.run(ttl=60)
        await jobs.over(job)
        await jobs.clock.advance(90)
        for prefix in ("jobs", "runs", "pods", "intent", "names/jobs", "status/jobs"):
            left = await jobs.fleet.client.keys(f"farmd/{prefix}/")
            assert [key for key in left.items if "present" not in key] == []


async def running(jobs: JobFleet, count: int) -> None:
    """So many members were started in all."""

    async def so() -> bool:
        return len(jobs.ran) >= count

    await jobs.until(so)


async def say(jobs: JobFleet, word: Callable[[Call, str], Awaitable[Mutation]]) -> None:
    """A person says a word to the job."""
    await commit(jobs.call, await word(jobs.call, "bert"))


async def half_done(jobs: JobFleet) -> Job:
    """A job of two members, the first of which ended well."""
    job = await jobs.run()
    await running(jobs, 2)
    jobs.ends["bert-worker-0~0"] = 0

    async def half() -> bool:
        return (await jobs.state(job)).done == {"worker": "0"}

    await jobs.until(half)
    return job


async def test_a_stopped_job_has_no_members_and_goes_on_with_what_is_not_done() -> None:
    async with job_fleet("n1") as jobs:
        job = await half_done(jobs)
        await say(jobs, commands.stop)
        await jobs.clock.advance(5)
        assert [name for name, pod in (await jobs.pods(job)).items() if not pod.done] == []
        status = await jobs.status(job)
        assert status is not None
        assert (status.state, status.done) == ("suspended", 1)
        await say(jobs, commands.resume)
        jobs.rule = lambda _: 0
        assert (await jobs.over(job)).outcome == "succeeded"
        assert sorted(jobs.runs(job)) == ["worker/0~0", "worker/1~0", "worker/1~0"]


async def test_a_job_fails_at_its_deadline_and_its_members_go() -> None:
    async with job_fleet("n1") as jobs:
        job = await jobs.run(active_deadline=30)
        await running(jobs, 2)
        run = await jobs.over(job, 60)
        assert (run.outcome, run.reason) == ("failed", "DeadlineExceeded")
        assert run.finished - run.started < 32
        await jobs.clock.advance(2)
        assert await jobs.pods(job) == {}


async def test_what_a_drained_node_ran_comes_up_elsewhere_and_counts_as_no_retry() -> None:
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run()
        await running(jobs, 2)
        await jobs.fleet.drain("n1")
        jobs.rule = lambda instance: 0 if jobs.where(instance) == "n2" else None
        run = await jobs.over(job)
        assert (run.outcome, run.restarts) == ("succeeded", 0)


async def test_a_restore_makes_no_member_of_a_drained_node_run_again_while_its_agent_may_be_away() -> None:
    """The snapshot has the agent's session and what it said of the member, which ended since."""
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        jobs.deaf = {node}
        jobs.fleet.farms["f0"].farm.caches.restored.set()
        await jobs.clock.advance(5)
        await jobs.fleet.drain(node)
        await jobs.clock.advance(20)
        await jobs.fleet.leave(node)
        await jobs.clock.advance(30)
        assert (await jobs.state(job)).slots == {}
        assert len(jobs.ran) == 1
        await jobs.fleet.arrive(node, features=["jobs.1"])
        jobs.deaf, jobs.rule = set(), lambda _: GOOD
        run = await jobs.over(job)
        assert (run.outcome, jobs.runs(job)) == ("succeeded", ["worker/0~0"])


async def test_a_runtime_in_doubt_answers_for_no_member_after_a_restore() -> None:
    """Its agent is present, and cannot look: the member has ended since."""
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        jobs.deaf = {node}
        await jobs.arrive(node, doubts={"process": "it does not answer"})
        jobs.fleet.farms["f0"].farm.caches.restored.set()
        await jobs.clock.advance(5)
        await jobs.fleet.drain(node)
        await jobs.clock.advance(150)
        assert (await jobs.state(job)).slots == {}
        await jobs.arrive(node)
        await jobs.clock.advance(30)
        assert (await jobs.state(job)).slots == {}
        jobs.deaf, jobs.rule = set(), lambda _: GOOD
        run = await jobs.over(job)
        assert (run.outcome, jobs.runs(job)) == ("succeeded", ["worker/0~0"])


@pytest.mark.parametrize("doubts", [{"container": "its engine does not answer"}, {"process": "silent"}])
async def test_a_drained_member_moves_where_its_agent_answered_before_its_runtime_was_in_doubt(
    doubts: dict[str, str],
) -> None:
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        jobs.fleet.farms["f0"].farm.caches.restored.set()
        await jobs.clock.advance(70)
        await jobs.arrive(node, doubts=doubts)
        await jobs.fleet.drain(node)
        jobs.rule = lambda instance: GOOD if jobs.where(instance) != node else None
        assert (await jobs.over(job)).outcome == "succeeded"
        assert jobs.runs(job) == ["worker/0~0", "worker/0~1"]


async def test_an_agent_that_comes_back_to_a_drained_node_first_says_how_its_members_ended() -> None:
    """Its presence proves nothing of them: the member ended well while nobody could write that down."""
    async with job_fleet("n1", "n2", lost_after=600.0) as jobs:
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        jobs.deaf = {node}
        await jobs.fleet.leave(node)
        await jobs.fleet.drain(node)
        await jobs.clock.advance(90)
        await jobs.fleet.arrive(node, features=["jobs.1"])
        await jobs.clock.advance(20)
        assert (await jobs.state(job)).slots == {}
        jobs.deaf, jobs.rule = set(), lambda _: GOOD
        run = await jobs.over(job)
        assert (run.outcome, jobs.runs(job)) == ("succeeded", ["worker/0~0"])


async def test_a_drained_member_moves_once_its_agent_had_the_time_to_answer_for_it() -> None:
    async with job_fleet("n1", "n2", lost_after=600.0) as jobs:
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        await jobs.fleet.leave(node)
        await jobs.fleet.drain(node)
        await jobs.clock.advance(5)
        await jobs.fleet.arrive(node, features=["jobs.1"])
        jobs.rule = lambda instance: GOOD if jobs.where(instance) != node else None
        assert (await jobs.over(job)).outcome == "succeeded"
        assert jobs.runs(job) == ["worker/0~0", "worker/0~1"]


async def test_r21_a_member_on_a_lost_node_is_tried_elsewhere_and_counts_as_no_retry() -> None:
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run()
        await running(jobs, 2)
        (gone,) = {jobs.where("bert-worker-0~0")}
        jobs.deaf = {gone}
        await jobs.fleet.leave(gone)
        await jobs.clock.advance(40)
        assert len(jobs.ran) == 2  # absent is not lost
        jobs.rule = lambda instance: 0 if jobs.where(instance) != gone else None
        run = await jobs.over(job)
        assert (run.outcome, run.restarts) == ("succeeded", 0)


async def test_r21_a_member_stays_whose_node_is_back_at_the_very_commit_that_replaces_it() -> None:
    """The farm planned from the verdict; its own copy of that is behind by one write."""
    async with job_fleet("n1", "n2", farms=0) as jobs:
        farm = await jobs.fleet.start("f0", kinds=("jobs",))
        job = await jobs.run(worker={"replicas": 1})
        await running(jobs, 1)
        node = jobs.where("bert-worker-0~0")
        verdict, tried = KEYS.work("nodes", node), list[str]()

        async def come_back(request: Request) -> None:
            if is_transaction(request) and b"/jobs" in request.body and not tried:
                tried.append(node)
                await jobs.fleet.client.delete(verdict)

        await jobs.fleet.put(verdict, Work(absent_since=1.0, lost_since=2.0))
        farm.faults.before = come_back
        await jobs.clock.advance(50)
        assert tried
        assert jobs.runs(job) == ["worker/0~0"]
        assert await jobs.fleet.client.read(KEYS.pod(job.id, node, "bert-worker-0~0")) is not None


async def test_r19_members_on_lost_nodes_are_removed_within_the_budget_and_then_people_are_asked() -> None:
    nodes = [f"n{number}" for number in range(8)]
    async with job_fleet(*nodes, farms=0) as jobs:
        await jobs.fleet.start("f0", kinds=("jobs",))
        job = await jobs.run(worker={"replicas": 48})
        await running(jobs, 48)
        lost = set(nodes[:6])
        jobs.deaf = lost
        for node in lost:
            await jobs.fleet.put(KEYS.work("nodes", node), Work(absent_since=1.0, lost_since=2.0))
        await jobs.clock.advance(50)
        assert 36 - 20 <= await left(jobs, job, lost) < 36
        status = await jobs.status(job)
        assert status is not None
        assert (status.state, "removal budget" in status.reason) == ("frozen", True)
        assert await jobs.fleet.client.read(KEYS.failsafe("jobs")) is not None
        entry = await jobs.fleet.client.read(KEYS.record("runs", job.id))
        assert entry is not None
        tried = codec.decode(Run, entry.value, entry.key).slots["worker"]
        assert len(tried) == 36 - await left(jobs, job, lost)  # none that was refused counts an attempt


async def test_r19_one_lost_node_heals_whole() -> None:
    async with job_fleet("n1", "n2", farms=0) as jobs:
        await jobs.fleet.start("f0", kinds=("jobs",))
        job = await jobs.run(worker={"replicas": 80})
        await running(jobs, 80)
        jobs.deaf = {"n1"}
        await jobs.fleet.put(KEYS.work("nodes", "n1"), Work(absent_since=1.0, lost_since=2.0))
        await jobs.clock.advance(30)
        assert await left(jobs, job, {"n1"}) == 0
        assert await jobs.fleet.client.read(KEYS.failsafe("jobs")) is None


async def left(jobs: JobFleet, job: Job, nodes: set[str]) -> int:
    """How many members of the first attempt are recorded on these nodes."""
    places = [KEYS.pod_parts(key)[1:] for key in await jobs.records(KEYS.pods(job.id), Pod)]
    return sum(node in nodes and instance.endswith("~0") for node, instance in places)


async def test_a_slot_that_ended_well_is_not_run_again_when_somebody_deletes_its_pod() -> None:
    async with job_fleet("n1") as jobs:
        job = await half_done(jobs)
        await jobs.fleet.client.delete(KEYS.pod(job.id, "n1", "bert-worker-0~0"))
        await jobs.fleet.client.delete(KEYS.intent("n1", "bert-worker-0~0"))
        await jobs.clock.advance(30)
        jobs.rule = lambda _: 0
        assert (await jobs.over(job)).outcome == "succeeded"
        assert jobs.runs(job).count("worker/0~0") == 1


async def test_a_rule_decides_before_the_types_own_restart() -> None:
    rules = [{"action": "ignore", "exit_codes": [75]}, {"action": "fail-job", "exit_codes": [2]}]
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda instance: {"bert-worker-0~0": 75, "bert-worker-1~0": 0}.get(instance, 2)
        job = await jobs.run(rules=rules)
        run = await jobs.over(job)
        assert (run.outcome, run.restarts) == ("failed", 0)
        assert "worker/0~1" in jobs.runs(job)


async def test_people_are_told_of_a_job_that_is_blocked_for_ten_minutes_and_of_its_end() -> None:
    async with job_fleet("n1") as jobs:
        inbox = jobs.fleet.farms["f0"].alerts
        pod = {"id": "bert", "command": ["/bin/true"], "resources": {"gpu": 1}}
        job = await jobs.run(worker={"replicas": 1, "pod": pod})
        await jobs.clock.advance(590)
        assert f"job_blocked_{job.id}" not in inbox.firing
        await jobs.clock.advance(30)
        assert f"job_blocked_{job.id}" in inbox.firing
        await jobs.arrive("n1", capacity={"gpu": 1.0})
        jobs.rule = lambda _: 0
        await jobs.over(job)
        await jobs.clock.advance(5)
        assert f"job_blocked_{job.id}" not in inbox.firing


async def test_a_job_that_stays_blocked_is_told_of_although_numbers_in_the_reason_change() -> None:
    async with job_fleet("n1") as jobs:
        inbox = jobs.fleet.farms["f0"].alerts
        pod = {"id": "bert", "command": ["/bin/true"], "resources": {"gpu": 1}}
        job = await jobs.run(worker={"replicas": 1, "pod": pod})
        await jobs.clock.advance(30)
        first = await jobs.status(job)
        assert first is not None
        await jobs.clock.advance(400)
        await jobs.arrive("n2", capacity={"gpu": 0.0})
        await jobs.clock.advance(30)
        later = await jobs.status(job)
        assert later is not None
        assert later.reason != first.reason
        assert later.since == first.since
        await jobs.clock.advance(170)
        assert f"job_blocked_{job.id}" in inbox.firing


@pytest.mark.parametrize("wrong", [b"{", b'{"id": "0a", "name": "bert"}'], ids=["illegible", "without types"])
async def test_people_are_told_of_a_bad_record_after_ten_minutes_and_of_its_end(wrong: bytes) -> None:
    async with job_fleet("n1") as jobs:
        inbox = jobs.fleet.farms["f0"].alerts
        job = await jobs.run()
        await running(jobs, 2)
        entry = await jobs.fleet.client.read(KEYS.record("jobs", job.id))
        assert entry is not None
        await jobs.fleet.client.put(entry.key, wrong.replace(b"0a", job.id.encode()))
        await jobs.clock.advance(590)
        assert f"job_blocked_{job.id}" not in inbox.firing
        await jobs.clock.advance(30)
        assert f"job_blocked_{job.id}" in inbox.firing
        status = await jobs.status(job)
        assert status is not None
        assert status.alerts == (f"job_blocked_{job.id}",)
        await jobs.fleet.client.put(entry.key, entry.value)
        await jobs.clock.advance(10)
        assert f"job_blocked_{job.id}" not in inbox.firing
        assert len(jobs.ran) == 2


async def test_a_job_whose_run_does_not_decode_is_told_as_it_was_with_the_way_out() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda instance: 0 if instance == "bert-worker-1~0" else None
        job = await jobs.run()
        key = KEYS.record("runs", job.id)

        async def half() -> bool:
            status = await jobs.status(job)
            return status is not None and (status.done, status.placed) == (1, 1)

        await jobs.until(half)
        await jobs.fleet.client.put(key, b"{")
        await jobs.fleet.crash("f0")
        await jobs.fleet.start("f1", kinds=("jobs", "nodes"))

        async def blocked() -> JobStatus | None:
            status = await jobs.status(job)
            return status if status is not None and status.state == "blocked" else None

        told = await jobs.until(blocked)
        assert (told.done, told.desired, told.placed) == (1, 2, 1)
        assert key in told.reason
        assert "farmctl doctor shows how to repair it" in told.reason
        for say_so in (commands.stop, commands.resume):
            with pytest.raises(Conflict, match=rf"its progress is unknown.*{key}"):
                await say_so(jobs.call, "bert")


async def test_a_member_that_ended_well_before_it_was_stopped_is_done_and_does_not_run_again() -> None:
    async with job_fleet("n1") as jobs:
        job = await jobs.run()

        async def running() -> bool:
            return len(jobs.ran) == 2

        await jobs.until(running)
        jobs.deaf = {"n1"}
        await jobs.clock.advance(2)
        before = await jobs.realities()
        await commit(jobs.call, await commands.stop(jobs.call, "bert"))

        async def removed() -> bool:
            return await jobs.pods(job) == {}

        await jobs.until(removed)
        exits = [Exit(jobs.clock.now(), 0)]
        said = msgspec.structs.replace(before["bert-worker-0~0"], phase="done", exits=exits)
        await jobs.fleet.put(KEYS.reality("n1", "bert-worker-0~0"), said)

        async def done() -> bool:
            return (await jobs.state(job)).done == {"worker": "0"}

        await jobs.until(done)
        jobs.deaf, jobs.rule = set(), lambda _: GOOD
        await jobs.clock.advance(2)
        await commit(jobs.call, await commands.resume(jobs.call, "bert"))
        assert (await jobs.over(job)).outcome == "succeeded"
        assert jobs.runs(job) == ["worker/0~0", "worker/1~0", "worker/1~0"]


@pytest.mark.parametrize("value", [b"{}", None], ids=["emptied", "deleted"])
async def test_a_job_whose_run_was_lost_runs_nothing_again_until_a_person_says_so(
    value: bytes | None,
) -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: GOOD
        job = await jobs.run()
        await jobs.over(job)
        key, ran = KEYS.record("runs", job.id), len(jobs.ran)
        await jobs.fleet.crash("f0")
        await (jobs.fleet.client.delete(key) if value is None else jobs.fleet.client.put(key, value))
        await jobs.fleet.start("f1", kinds=("jobs", "nodes"))

        async def blocked() -> bool:
            status = await jobs.status(job)
            return status is not None and status.state == "blocked" and key in status.reason

        await jobs.until(blocked)
        await jobs.clock.advance(60)
        assert len(jobs.ran) == ran
        report = await examine(jobs.fleet.client, KEYS, jobs.clock)
        (lost,) = (each for each in report.findings if each.code == "run-lost")
        for mutation in await fixes.mutations(jobs.call, [lost]):
            await commit(jobs.call, mutation)
        assert (await jobs.state(job)).done == {}, "it may begin anew now"


async def test_a_job_whose_run_does_not_decode_goes_with_its_members_when_a_person_deletes_it() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda instance: 0 if instance == "bert-worker-1~0" else None
        job = await jobs.run()
        keys = [KEYS.record("jobs", job.id), KEYS.record("runs", job.id)]

        async def placed() -> bool:
            return len(jobs.ran) == 2

        await jobs.until(placed)
        await jobs.fleet.client.put(keys[1], b"{")
        await jobs.fleet.crash("f0")
        await jobs.fleet.start("f1", kinds=("jobs", "nodes"))

        async def blocked() -> bool:
            status = await jobs.status(job)
            return status is not None and status.state == "blocked"

        await jobs.until(blocked)
        assert await jobs.pods(job)
        await commit(jobs.call, await JOB.delete(jobs.call, "bert", cascade=True))

        async def gone() -> bool:
            return [await jobs.fleet.client.read(key) for key in keys] == [None, None]

        await jobs.until(gone)
        assert await jobs.pods(job) == {}


async def test_a_job_that_is_over_is_neither_stopped_nor_resumed() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: 0
        await jobs.over(await jobs.run())
        for say_so in (commands.stop, commands.resume):
            with pytest.raises(Conflict, match="job 'bert' is over: succeeded"):
                await say_so(jobs.call, "bert")


async def test_the_alert_of_a_bad_record_is_over_when_somebody_deletes_the_record() -> None:
    async with job_fleet("n1") as jobs:
        inbox = jobs.fleet.farms["f0"].alerts
        await jobs.fleet.client.put(KEYS.record("jobs", "0a"), b"{")
        await jobs.clock.advance(620)
        assert "job_blocked_0a" in inbox.firing
        await jobs.fleet.client.delete(KEYS.record("jobs", "0a"))
        await jobs.clock.advance(10)
        assert "job_blocked_0a" not in inbox.firing


async def test_a_record_beyond_the_limits_is_blocked_and_nothing_of_it_is_touched() -> None:
    async with job_fleet("n1") as jobs:
        job = Job(id="0a", name="b" * 41, types=[Type(name="w", manifest="a" * 64)])
        await jobs.fleet.put(KEYS.record("jobs", "0a"), job)
        await jobs.clock.advance(5)
        status = await jobs.status(job)
        assert status is not None
        assert status.state == "blocked"
        assert "name: found 41 characters, expected at most 40" in status.reason


async def test_a_record_beyond_the_limits_goes_when_a_person_deletes_it() -> None:
    async with job_fleet("n1") as jobs:
        job = Job(id="0a", name="b" * 41, types=[Type(name="w", manifest="a" * 64)], deleting=True)
        await jobs.fleet.put(KEYS.record("jobs", "0a"), job)
        await jobs.clock.advance(5)
        assert await jobs.fleet.client.read(KEYS.record("jobs", "0a")) is None


@pytest.mark.parametrize(
    ("slots", "fields"),
    [({"w": 0}, {"gang": True}), ({"w": 1, "m": 0}, {"success": Success(types=["m"])})],
    ids=["a gang without a slot", "success of a type without slots"],
)
async def test_a_record_that_only_earlier_versions_took_ends_as_it_did_there(
    slots: dict[str, int], fields: dict[str, Any]
) -> None:
    async with job_fleet("n1") as jobs:
        body = manifests.canonical(Manifest(id="b", command=["/bin/true"]))
        sha = manifests.digest(body)
        await jobs.fleet.client.put(KEYS.manifest(sha), body)
        types = [Type(name=name, manifest=sha, replicas=count) for name, count in slots.items()]
        await jobs.fleet.put(KEYS.record("jobs", "0a"), Job(id="0a", name="b", types=types, ttl=60, **fields))
        await jobs.clock.advance(90)
        assert await jobs.fleet.client.read(KEYS.record("jobs", "0a")) is None


@pytest.mark.parametrize(
    ("gang", "placed", "why"),
    [
        (
            False,
            ["n1", "n2"],
            "2 where a fixed port is held; nearest miss n1: port 9090/tcp is held by bert-",
        ),
        (
            True,
            [],
            "2 where a fixed port is held; nearest miss n1: port 9090/tcp is used by"
            " another pod of this placement",
        ),
    ],
)
async def test_r17_members_that_want_one_port_stand_on_different_nodes(
    gang: bool, placed: list[str], why: str
) -> None:
    async with job_fleet("n1", "n2") as jobs:
        pod = {"id": "bert", "command": ["/bin/true"], "ports": {"web": {"port": 9090}}}
        job = await jobs.run(worker={"replicas": 3, "pod": pod}, gang=gang)
        await jobs.clock.advance(10)
        found = await jobs.records(KEYS.pods(job.id), Pod)
        assert sorted(KEYS.pod_parts(key)[1] for key in found) == placed
        status = await jobs.status(job)
        assert status is not None
        assert why in status.reason


async def test_members_that_ended_do_not_hold_a_drain() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: 0
        job = await jobs.run()
        await jobs.over(job)
        assert len(await jobs.pods(job)) == 2
        await jobs.clock.advance(30)  # its worker has nothing left to do
        await jobs.fleet.drain("n1")
        await jobs.clock.advance(30)
        assert await jobs.fleet.stage("n1") == "done"
        assert await jobs.pods(job) == {}


async def test_r11_members_come_only_to_agents_that_know_jobs_and_people_are_told() -> None:
    async with job_fleet("n1") as jobs:
        await jobs.fleet.arrive("n1")  # an agent of an earlier version
        job = await jobs.run()
        await jobs.clock.advance(10)
        status = await jobs.status(job)
        assert status is not None
        assert status.state == "blocked"
        assert "the node's agent does not know 'jobs.1'" in status.reason
        assert await jobs.pods(job) == {}


async def test_of_two_people_who_run_one_name_one_wins() -> None:
    async with job_fleet("n1") as jobs:
        first, second = (JOB.file.parse(document(ttl=ttl), "bert.yaml") for ttl in (60, 90))
        one, other = await JOB.create(jobs.call, first), await JOB.create(jobs.call, second)
        await commit(jobs.call, one)
        with pytest.raises(Conflict, match="exists and differs: ttl"):
            await JOB.commit_create(jobs.call, other, second)
        again = await JOB.create(jobs.call, first)
        assert not again.needed
        assert (await jobs.job()).ttl == 60


async def test_of_two_people_who_run_an_equal_job_at_once_the_second_has_nothing_to_do() -> None:
    async with job_fleet("n1") as jobs:
        spec = JOB.file.parse(document(), "bert.yaml")
        both = [await JOB.create(jobs.call, spec) for _ in range(2)]
        assert all(each.needed for each in both)
        done = await asyncio.gather(*(JOB.commit_create(jobs.call, each, spec) for each in both))
        assert sorted(each.needed for each in done) == [False, True]
        (record,) = (await jobs.records(KEYS.tree("jobs"), Job)).values()
        assert record.id == (await jobs.job()).id
        jobs.rule = lambda _: GOOD
        await jobs.over(record)
        assert sorted(jobs.runs(record)) == ["worker/0~0", "worker/1~0"]


async def test_a_member_that_is_killed_for_its_memory_is_tried_again_and_people_are_told_why() -> None:
    async with job_fleet("n1") as jobs:
        killed = Exit(jobs.clock.now(), -9, "oom")
        jobs.rule = lambda instance: killed if instance == "bert-worker-1~0" else None
        job = await jobs.run(worker={"restart": "exit-code"})

        async def told() -> JobStatus | None:
            status = await jobs.status(job)
            return status if status is not None and status.state == "restarting" else None

        status = await jobs.until(told)
        assert "worker/1 tried again after it ended (oom), attempt 1" in status.reason
        jobs.rule = lambda instance: killed if instance == "bert-worker-1~0" else GOOD
        assert (await jobs.over(job)).restarts == 1
        farm = jobs.fleet.farms["f0"]
        assert farm.metric("farmd_job_restarts_total", cause="oom") == 1
        assert farm.metric("farmd_job_restarts_total", cause="exit") == 0


async def test_a_job_that_fails_for_its_memory_says_so() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: Exit(jobs.clock.now(), -9, "oom")
        job = await jobs.run(worker={"restart": "never", "replicas": 1})
        run = await jobs.over(job)
        assert (run.outcome, run.message) == ("failed", "worker/0 ended with exit code 137 (oom)")


async def test_a_member_whose_instance_another_owner_has_on_the_best_node_goes_to_another_one() -> None:
    async with job_fleet("n1", "n2") as jobs:
        first = await jobs.run(name="a", worker={"name": "b-c", "replicas": 1, "node_selector": "node = n1"})
        busy = await jobs.run(name="busy", worker={"replicas": 3, "node_selector": "node = n2"})

        async def placed() -> bool:
            return len(await jobs.pods(first)) == 1 and len(await jobs.pods(busy)) == 3

        await jobs.until(placed)
        second = await jobs.run(name="a-b", worker={"name": "c", "replicas": 1})
        await jobs.clock.advance(5)
        assert jobs.runs(second)
        assert jobs.where("a-b-c-0~0") == "n2"


async def test_a_job_whose_instance_another_owner_has_on_every_node_says_so_until_it_is_free() -> None:
    async with job_fleet("n1") as jobs:
        first = await jobs.run(name="a", ttl="10", worker={"name": "b-c", "replicas": 1})

        async def placed() -> bool:
            return len(await jobs.pods(first)) == 1

        await jobs.until(placed)
        second = await jobs.run(name="a-b", worker={"name": "c", "replicas": 1})

        async def told() -> bool:
            status = await jobs.status(second)
            return status is not None and status.state == "blocked" and "a-b-c-0~0" in status.reason

        await jobs.until(told)
        assert not await jobs.pods(second)
        jobs.rule = lambda _: 0
        assert (await jobs.over(second)).outcome == "succeeded"


async def test_many_members_whose_instances_another_owner_has_are_told_in_one_line() -> None:
    count = 30
    async with job_fleet("n1") as jobs:
        first = await jobs.run(name="a", worker={"name": "b-c", "replicas": count})

        async def placed() -> bool:
            return len(await jobs.pods(first)) == count

        await jobs.until(placed)
        second = await jobs.run(name="a-b", worker={"name": "c", "replicas": count})

        async def told() -> str:
            status = await jobs.status(second)
            return status.reason if status is not None and status.state == "blocked" else ""

        reason = await jobs.until(told)
        assert (
            "c: another owner has a-b-c-0~0, a-b-c-1~0, a-b-c-2~0 and 27 more on the nodes with room"
            in reason
        )
