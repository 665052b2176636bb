"""A farm that falls at a request to the API server: another one finishes, and no slot is made twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farmd.kubernetes.errors import Unavailable, UnknownOutcome
from farmd.kubernetes.resources import PODS, SERVICES
from farmd.kubernetes.transport import KubernetesTransport, Request
from tests.fleet import eventually, in_time
from tests.kubernetes.farmjobs import JOBS, SUCCEEDED, Jobs, failed

pytestmark = pytest.mark.xdist_group("kubernetes")


class Fall:
    """Cuts a transport off at its k-th write of a method; ``answered``: the server had done it already."""

    def __init__(self, transport: KubernetesTransport, k: int, method: str, *, done: bool) -> None:
        self.happened = asyncio.Event()
        self._send, self._left, self._method, self._done = transport.send, k, method, done
        transport.send = self.send  # type: ignore[method-assign]

    async def send(self, request: Request, timeout: float = 10.0) -> bytes:
        """In place of the transport's."""
        if self.happened.is_set():
            raise Unavailable("fallen")
        if request.write and self._method in ("", request.method):
            self._left -= 1
            if self._left == 0:
                self.happened.set()
                if self._done:
                    await self._send(request, timeout)
                raise UnknownOutcome("fallen")
        return await self._send(request, timeout)


STEPS = [(1, ""), (2, ""), (4, ""), (1, "DELETE")]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(("k", "method"), STEPS)
async def test_whoever_takes_over_finishes_and_makes_no_slot_twice(
    jobs: Jobs, k: int, method: str, done: bool
) -> None:
    await jobs.stop("first")
    fall = await jobs.falling("mortal", lambda transport: Fall(transport, k, method, done=done))
    jobs.create("fall", {"Worker": {"replicas": 3, "restartPolicy": "ExitCode"}})
    uids: dict[str, set[str]] = {}
    made = 3
    if method == "DELETE":
        made += 1
        await jobs.until("three pods", lambda: len(jobs.pods()) == 3)
        _note(uids, jobs.pods())
        jobs.play("fall-worker-1", failed(137))
    await in_time(fall.happened.wait())
    _note(uids, jobs.pods())
    await jobs.stop("mortal")
    await jobs.farm("heir")
    attempts = {"fall-worker-1": "1"} if method == "DELETE" else {}

    def whole() -> bool:
        pods = jobs.pods()
        _note(uids, pods)
        found = {name: pod["metadata"]["annotations"]["farmd.io/attempt"] for name, pod in pods.items()}
        return found == {f"fall-worker-{i}": "0" for i in range(3)} | attempts

    await jobs.until("all pods of their attempts", whole)
    for pod in jobs.pods():
        jobs.play(pod, SUCCEEDED)
    await jobs.until("a job that succeeded", lambda: "Succeeded" in jobs.states("fall"))
    assert sum(map(len, uids.values())) == made
    assert jobs.job("fall")["status"].get("restarts", 0) == made - 3
    assert len(jobs.server.ask("GET", SERVICES.path(jobs.namespace))["items"]) == 1


def _note(uids: dict[str, set[str]], pods: dict[str, Any]) -> None:
    for name, pod in pods.items():
        uids.setdefault(name, set()).add(pod["metadata"]["uid"])


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
