"""Farms whose knowledge of a job is old, or whose job another cluster claims: they write nothing wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from farmd.jobs import progress
from farmd.kubernetes.errors import UnknownOutcome
from farmd.kubernetes.jobs import kind
from farmd.kubernetes.jobs.kind import KubeJobs
from farmd.kubernetes.objects import PODS
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock
from store.times import seconds_of
from tests.fleet import eventually
from tests.kubernetes.farmjobs import JOBS, RUNNING, SUCCEEDED, Jobs, failed, noting

pytestmark = pytest.mark.xdist_group("kubernetes")


async def test_a_farm_with_an_old_copy_of_a_finished_job_makes_no_pod(jobs: Jobs) -> None:
    await jobs.stop("first")
    created = jobs.create("stale", {"Worker": {"replicas": 1}})
    status = {
        "conditions": [{"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": ""}]
    }
    seen: list[ApiRequest] = []

    def watch(transport: KubernetesTransport) -> None:
        send = transport.send

        async def meddling(request: ApiRequest, timeout: float = 10.0) -> bytes:
            if request.method == "PATCH" and not seen:  # between the farm's reading and its first write
                jobs.server.patch(JOBS.path(jobs.namespace, "stale", "status"), {"status": status})
            if request.write:
                seen.append(request)
            return await send(request, timeout)

        transport.send = meddling  # type: ignore[method-assign]
        transport.watch = _deaf(transport.watch)  # type: ignore[method-assign]

    await jobs.falling("late", watch)
    await jobs.until("a first write", lambda: bool(seen))
    await jobs.until("no item any more", lambda: not jobs.owned("late"))
    assert {each.method for each in seen} == {"PATCH"}
    assert jobs.states("stale") == {"Succeeded"}
    assert jobs.job("stale")["metadata"]["uid"] == created["metadata"]["uid"]
    assert not jobs.server.ask("GET", PODS.path(jobs.namespace))["items"]


def _deaf(watch: Any) -> Any:
    """A watch that tells nothing of jobs."""

    @asynccontextmanager
    async def watched(request: ApiRequest, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        async with watch(request, timeout) as lines:
            yield _nothing() if "farmjobs" in request.path else lines

    return watched


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_r16_after_a_restore_of_etcd_a_job_s_next_write_is_its_claim(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_RETRY_SECONDS", 0.1)
    jobs, seen = unclaimed, list[ApiRequest]()
    await jobs.falling("first", noting(seen))
    jobs.create("bert", {"Worker": {"replicas": 1, "restartPolicy": "ExitCode"}})
    await jobs.until("its pod", lambda: "bert-worker-0" in jobs.pods())
    jobs.play("bert-worker-0", RUNNING)
    await jobs.until("a job that runs", lambda: "Running" in jobs.states("bert"))
    (kind,) = jobs.running("first").farm.kinds
    assert isinstance(kind, KubeJobs)
    (unit,) = kind.units
    listed = {(each.metadata.namespace, each.metadata.name): each for each in unit.pods}
    assert unit.pods.replace(listed, 1, {}, unit.pods.version), "what a list of a restored server does"
    seen.clear()
    jobs.play("bert-worker-0", failed(137))

    def writes() -> list[ApiRequest]:
        return [each for each in seen if "/events" not in each.path]

    await jobs.until("its retry", lambda: [each.method for each in writes()].count("POST") == 1)
    methods = [(each.method, each.path.rpartition("/")[2]) for each in writes()]
    assert methods[0] == ("PATCH", "status"), methods
    assert b'"resourceVersion"' in writes()[0].body, "conditional on the very version that was planned from"


async def test_another_cluster_s_claim_is_left_alone_and_told(jobs: Jobs) -> None:
    await jobs.stop("first")
    jobs.create("theirs", {"Worker": {"replicas": 1}})
    jobs.server.patch(JOBS.path(jobs.namespace, "theirs", "status"), {"status": {"claim": "other/7"}})
    await jobs.farm("second")

    async def told() -> bool:
        return "farms of another cluster (other) own it" in await jobs.status()

    await eventually(told, what="a status that says so")
    assert not jobs.pods()
    assert jobs.job("theirs")["status"] == {"claim": "other/7"}


async def test_r16_an_audit_record_goes_before_the_first_creation(unclaimed: Jobs) -> None:
    told: list[bool] = []

    def watch(transport: KubernetesTransport) -> None:
        send = transport.send

        async def looking(request: ApiRequest, timeout: float = 10.0) -> bytes:
            if request.method == "POST" and request.path.endswith(("/pods", "/services")):
                page = await unclaimed.client.list(unclaimed.keys.tree("audit"))
                told.append(any(b"job.members" in raw.decoded() for raw in page.items))
            return await send(request, timeout)

        transport.send = looking  # type: ignore[method-assign]

    await unclaimed.falling("first", watch)
    unclaimed.create("told", {"Worker": {"replicas": 2}})
    await unclaimed.until("both pods", lambda: len(unclaimed.pods()) == 2)
    assert told == [True] * 3


async def test_a_farm_that_may_not_write_a_status_makes_no_pod_and_says_so_in_consul(
    unclaimed: Jobs,
) -> None:
    reading = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    writing = {"apiGroups": [""], "resources": ["pods", "services", "events"], "verbs": ["*"]}
    unclaimed.server.grant("farm", reading, writing)
    await unclaimed.farm("first", "farm")
    unclaimed.create("mute", {"Worker": {"replicas": 1}})
    await unclaimed.until_status('cannot patch resource \\"farmjobs/status\\"')
    assert not unclaimed.pods()
    assert "status" not in unclaimed.job("mute")


LOST = [("POST", "/pods"), ("POST", "/services"), ("DELETE", "lost-worker-1")]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(("method", "end"), LOST)
async def test_a_write_whose_answer_was_lost_is_settled_by_reading_what_it_named(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch, method: str, end: str, done: bool
) -> None:
    monkeypatch.setattr(kind, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(progress, "FIRST_RETRY_SECONDS", 0.1)
    jobs, lost = unclaimed, list[ApiRequest]()

    def losing(transport: KubernetesTransport) -> None:
        send = transport.send

        async def once(request: ApiRequest, timeout: float = 10.0) -> bytes:
            if not lost and request.method == method and request.path.endswith(end):
                lost.append(request)
                if done:
                    await send(request, timeout)
                raise UnknownOutcome("no answer")
            return await send(request, timeout)

        transport.send = once  # type: ignore[method-assign]

    await jobs.falling("first", losing)
    jobs.create("lost", {"Worker": {"replicas": 2, "restartPolicy": "ExitCode"}})
    names = {"lost-worker-0", "lost-worker-1"}
    await jobs.until("both pods", lambda: jobs.pods().keys() == names)
    jobs.play("lost-worker-1", failed(137))

    def tried_again() -> bool:
        found = jobs.pods().get("lost-worker-1")
        return found is not None and found["metadata"]["annotations"]["farmd.io/attempt"] == "1"

    await jobs.until("another attempt", tried_again)
    for pod in names:
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("lost"))
    assert lost
    assert jobs.job("lost")["status"]["restarts"] == 1


async def test_a_server_that_goes_away_amid_creations_is_asked_of_those_alone_that_it_did_not_answer(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "SETTLE_SECONDS", 0.3)
    count, answered = 100, 40
    jobs, sent, lost, read = unclaimed, list[str](), set[str](), list[str]()

    def leaving(transport: KubernetesTransport) -> None:
        send = transport.send

        async def until_it_is_away(request: ApiRequest, timeout: float = 10.0) -> bytes:
            if request.method == "GET" and "/pods/" in request.path:
                read.append(request.path.rpartition("/")[2])
            if not request.path.endswith("/pods") or request.method != "POST" or read:
                return await send(request, timeout)
            sent.append(msgspec.json.decode(request.body)["metadata"]["name"])
            if len(sent) <= answered:
                return await send(request, timeout)
            lost.add(sent[-1])
            if len(sent) % 2:  # carried out, and not answered
                await send(request, timeout)
            raise UnknownOutcome("the connection is gone")

        transport.send = until_it_is_away  # type: ignore[method-assign]

    await jobs.falling("first", leaving)
    jobs.create("big", {"Worker": {"replicas": count}})
    await jobs.until("all pods", lambda: len(jobs.pods()) == count)
    assert {pod["metadata"]["annotations"]["farmd.io/attempt"] for pod in jobs.pods().values()} == {"0"}
    assert lost
    assert lost <= set(sent)
    assert not set(read) & set(sent[:answered])
    assert jobs.job("big")["status"].get("restarts", 0) == 0


async def test_deadlines_are_counted_by_the_api_server_s_clock(unclaimed: Jobs) -> None:
    class Ahead(SystemClock):
        """An hour ahead."""

        def now(self) -> float:
            return super().now() + 3600.0

    def ahead(transport: KubernetesTransport) -> None:
        transport._clock = Ahead()

    await unclaimed.falling("early", ahead, clock=Ahead())
    unclaimed.create("long", {"Worker": {"replicas": 1}}, runPolicy={"activeDeadlineSeconds": 600})
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    unclaimed.play("long-worker-0", RUNNING)
    await unclaimed.until("a job that runs", lambda: "Running" in unclaimed.states("long"))
    status = unclaimed.job("long")["status"]
    assert abs(seconds_of(status["startTime"]) - SystemClock().now()) < 600
    unclaimed.play("long-worker-0", SUCCEEDED)
    await unclaimed.until("a job that succeeded", lambda: "Succeeded" in unclaimed.states("long"))
