"""Farms whose knowledge of a job is old, or whose job another cluster claims: they write nothing wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farmd.kubernetes.resources import PODS
from farmd.kubernetes.transport import KubernetesTransport, Request
from tests.fleet import eventually
from tests.kubernetes.farmjobs import JOBS, Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")


async def test_a_farm_with_an_old_copy_of_a_finished_job_makes_no_pod(jobs: Jobs) -> None:
    await jobs.stop("first")
    created = jobs.create("stale", {"Worker": {"replicas": 1}})
    status = {
        "conditions": [{"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": ""}]
    }
    seen: list[Request] = []

    def watch(transport: KubernetesTransport) -> None:
        send = transport.send

        async def meddling(request: Request, timeout: float = 10.0) -> bytes:
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
    async def watched(request: Request, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        async with watch(request, timeout) as lines:
            yield _nothing() if "farmjobs" in request.path else lines

    return watched


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


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
