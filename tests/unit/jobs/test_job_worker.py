"""Jobs on nodes, as a farm and agents bring them to their end: the embedded server, virtual time."""

from __future__ import annotations

from store.reality import Exit
from tests.job_fleet import job_fleet


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


async def test_a_job_is_deleted_when_its_ttl_is_over() -> None:
    async with job_fleet("n1") as jobs:
        jobs.rule = lambda _: 0
        job = await jobs.run(ttl=60)
        await jobs.over(job)
        await jobs.clock.advance(90)
        for prefix in ("jobs", "runs", "pods", "intent", "names/jobs", "status/jobs"):
            left = await jobs.fleet.client.keys(f"farmd/{prefix}/")
            assert [key for key in left.items if "present" not in key] == []
