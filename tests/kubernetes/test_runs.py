"""How far a job is (``runs/<uid>``) is kept as long as the job, whoever deletes it, and no longer."""

from __future__ import annotations

import pytest

from farmd.kubernetes.jobs import kind
from store.jobs import Run
from tests.fleet import eventually
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")


async def half_done(jobs: Jobs, name: str, **spec: object) -> str:
    """A job of two members, of which one ended well; its uid."""
    uid: str = jobs.create(name, {"Worker": {"replicas": 2}}, **spec)["metadata"]["uid"]
    members = {f"{name}-worker-{index}" for index in range(2)}
    await jobs.until("two pods", lambda: members <= jobs.pods().keys())
    jobs.play(f"{name}-worker-0", SUCCEEDED)

    async def noted() -> bool:
        return uid in await jobs.runs()

    await eventually(noted, what="a run")
    return uid


async def no_runs(jobs: Jobs) -> None:
    async def none() -> bool:
        return not await jobs.runs()

    await eventually(none, what="no run any more")


async def test_a_job_that_its_time_to_live_deletes_takes_its_run_along(jobs: Jobs) -> None:
    await half_done(jobs, "short", runPolicy={"ttlSecondsAfterFinished": 0})
    jobs.play("short-worker-1", SUCCEEDED)
    await no_runs(jobs)
    assert not jobs.server.ask("GET", JOBS.path(jobs.namespace))["items"]


async def test_a_job_that_a_person_deletes_takes_its_run_and_its_status_along(jobs: Jobs) -> None:
    await half_done(jobs, "gone")
    jobs.server.ask("DELETE", JOBS.path(jobs.namespace, "gone"))
    await no_runs(jobs)


async def test_a_run_whose_job_vanished_while_nobody_watched_is_collected(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "COLLECT_SECONDS", 0.2)
    unseen = await half_done(jobs, "unseen")
    await jobs.stop("first")
    jobs.server.ask("DELETE", JOBS.path(jobs.namespace, "unseen"))
    source = (await jobs.runs())[unseen].source
    assert source.endswith(f"/farmjobs/{jobs.namespace}/unseen")
    kept = {
        "of-another-cluster": Run(restarts=1, source=f"elsewhere/farmjobs/{jobs.namespace}/unseen"),
        "of-a-kind-that-is-off": Run(restarts=1, source=source.replace("farmjobs", "tfjobs")),
        "of-an-earlier-version": Run(restarts=1),
    }
    for uid, run in kept.items():
        await jobs.write_run(uid, run)
    await jobs.farm("second")

    async def collected() -> bool:
        return unseen not in await jobs.runs()

    await eventually(collected, what="the end of the run")
    assert await jobs.runs() == kept
    await jobs.until("no item any more", lambda: not jobs.owned("second"))


async def test_the_run_of_a_job_that_is_over_is_kept_until_the_job_goes(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "COLLECT_SECONDS", 0.2)
    uid = await half_done(jobs, "over")
    other = await half_done(jobs, "other")
    jobs.play("over-worker-1", SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("over"))
    await jobs.stop("first")
    jobs.server.ask("DELETE", JOBS.path(jobs.namespace, "other"))
    await jobs.farm("second")

    async def collected() -> bool:
        return other not in await jobs.runs()

    await eventually(collected, what="a look at all runs")
    assert list(await jobs.runs()) == [uid]
