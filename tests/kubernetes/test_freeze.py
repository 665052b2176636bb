"""A freeze of jobs in Kubernetes (R18): nothing goes that no person asked for; holding and repair go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from farmd.kubernetes import informer
from farmd.kubernetes.install import documents, install
from farmd.kubernetes.objects import CRDS
from store import codec
from store.failsafe import Failsafe, FailsafeStore
from tests.farmctl import Farmctl
from tests.fleet import CLOCK, eventually
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")


@asynccontextmanager
async def frozen(jobs: Jobs) -> AsyncIterator[None]:
    """A freeze that another farm recorded a minute ago."""
    record = Failsafe(evidence="kubernetes: a test doubts it", by="test", since=CLOCK.now() - 60)
    key = jobs.keys.failsafe("kubejobs")
    await jobs.client.put(key, codec.encode(record))
    yield
    await jobs.client.delete(key)


async def test_a_freeze_holds_the_cleaning_that_no_person_asked_for(jobs: Jobs) -> None:
    jobs.create("cleaned", {"Worker": {"replicas": 2}}, runPolicy={"cleanPodPolicy": "All"})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    async with frozen(jobs):
        await jobs.until_frozen("first")
        for pod in jobs.pods():
            jobs.play(pod, SUCCEEDED)
        await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("cleaned"))
        await jobs.until_status("frozen: kubernetes: a test doubts it")
        assert len(jobs.pods()) == 2
    await jobs.until("no pods", lambda: not jobs.pods())


async def test_a_freeze_lets_new_jobs_get_their_members(jobs: Jobs) -> None:
    async with frozen(jobs):
        await jobs.until_frozen("first")
        jobs.create("new", {"Worker": {"replicas": 2}})
        await jobs.until("two pods", lambda: len(jobs.pods()) == 2)


async def test_a_freeze_lets_a_person_suspend_a_job(jobs: Jobs) -> None:
    jobs.create("rests", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    async with frozen(jobs):
        await jobs.until_frozen("first")
        jobs.server.patch(JOBS.path(jobs.namespace, "rests"), {"spec": {"runPolicy": {"suspend": True}}})
        await jobs.until("no pods", lambda: not jobs.pods())


async def test_jobs_whose_definition_is_removed_leave_their_farm_until_it_is_there_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "DOUBT_SECONDS", 0.3)
    monkeypatch.setattr("farmd.kubernetes.contact.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("farmd.kubernetes.contact.LASTING_SECONDS", 0.5)
    jobs.create("bert", {"Worker": {"replicas": 2}})
    await jobs.until("two pods", lambda: len(jobs.pods()) == 2)
    transport = jobs.settings("first").transport
    asked = transport._metrics.counts  # type: ignore[union-attr]
    missing = ("farmd_kubernetes_requests_total", "404", "jobs", "get")
    with capture_logs() as lines:
        jobs.server.ask("DELETE", CRDS.path(name="farmjobs.farmd.io"))
        locks = jobs.keys.tree("locks") + "kubejobs/"

        async def released() -> bool:
            return not jobs.owned("first") and not (await jobs.client.keys(locks)).items

        await eventually(released, what="no lock")
        await jobs.until_frozen("first")
        reports = jobs.running("first").farm.features.reports
        await jobs.until("it is told", lambda: "missing" in reports[jobs.namespace].troubles)
        before = asked[missing]
        await jobs.until("some looks", lambda: asked[missing] > before + 3)
    told = [line for line in lines if line["event"] == "informer.doubt"]
    assert [line["resource"] for line in told] == ["farmjobs.farmd.io"]
    assert len(jobs.pods()) == 2  # they go by their owner references; no garbage collector runs here
    await install(transport, ("farmjobs",), CLOCK)
    jobs.create("anew", {"Worker": {"replicas": 1}})
    await jobs.until("a pod of the new job", lambda: "anew-worker-0" in jobs.pods())
    await jobs.until("it is told no more", lambda: "missing" not in reports[jobs.namespace].troubles)


async def test_a_right_that_is_lost_freezes_until_it_is_back_or_a_person_says_go_on(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "WATCH_SECONDS", (1.0, 2.0))
    monkeypatch.setattr(informer, "DOUBT_SECONDS", 0.5)
    (role,) = (one for one in documents(("farmjobs",)) if one["kind"] == "ClusterRole")
    less = [rule for rule in role["rules"] if "services" not in rule["resources"]]
    pods_alone = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]}
    unclaimed.server.grant("farm", *role["rules"])
    await unclaimed.farm("first", "farm")
    unclaimed.create("bert", {"Worker": {"replicas": 1}}, runPolicy={"cleanPodPolicy": "All"})
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    unclaimed.server.grant("farm", *less, pods_alone)
    evidence = f"kubernetes {unclaimed.namespace}: services may not be read"
    store = FailsafeStore(unclaimed.client, unclaimed.keys)

    async def recorded() -> bool:
        stored = await store.get("kubejobs")
        return stored is not None and stored.record.evidence == evidence

    await eventually(recorded, what="the freeze")
    unclaimed.play("bert-worker-0", SUCCEEDED)
    await unclaimed.until_status(f"frozen: {evidence}")
    assert len(unclaimed.pods()) == 1
    farmctl = Farmctl(unclaimed.consul, unclaimed.prefix)
    told = await asyncio.to_thread(farmctl.ok, "failsafe", "status", "-o", "json")
    assert [(one["kind"], one["evidence"]) for one in told.json["items"]] == [("kubejobs", evidence)]
    words = (
        "failsafe",
        "clear",
        "kubejobs",
        "--evidence",
        evidence,
        "--for",
        "1h",
        "--reason",
        "known",
        "-y",
    )
    await asyncio.to_thread(farmctl.ok, *words)
    await unclaimed.until("no pod", lambda: not unclaimed.pods())
    unclaimed.server.grant("farm", *role["rules"])

    async def thawed() -> bool:
        return await store.get("kubejobs") is None

    await eventually(thawed, what="the end of the freeze")
