"""A trouble of a job is an event on it: once in ten minutes, warnings alone, and a refused one is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from farmd.kubernetes.events import Events
from farmd.kubernetes.objects import PODS
from tests.unit.jobs.kubernetes import job
from tests.unit.kubernetes.test_requests import asking, status
from tests.virtual import VirtualClock


async def test_one_reason_of_a_job_is_told_once_in_ten_minutes(tmp_path: Path) -> None:
    clock, sent, last = VirtualClock(), list[tuple[str, str, str]](), asyncio.Event()

    async def record(request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        sent.append((request.path, body["reason"], body["involvedObject"]["uid"]))
        if body["reason"] == "Last":
            last.set()
        return status(403) if body["reason"] == "Unschedulable" else web.json_response({})

    async with asking(tmp_path, record) as transport:
        events = Events(transport, PODS, clock)
        sending = asyncio.create_task(events.run())

        def warn(uid: str, reason: str) -> None:
            events.event(job(uid=uid), "Warning", reason, "")

        for _ in range(3):
            warn("1", "ImagePullBackOff")
        warn("1", "Unschedulable")
        warn("2", "ImagePullBackOff")
        events.event(job(uid="1"), "Normal", "Started", "no trouble")
        await clock.advance(600)
        warn("1", "ImagePullBackOff")
        warn("1", "Last")
        await asyncio.wait_for(last.wait(), 60)
        sending.cancel()

    path = "/api/v1/namespaces/default/events"
    assert sent == [
        (path, "ImagePullBackOff", "1"),
        (path, "Unschedulable", "1"),
        (path, "ImagePullBackOff", "2"),
        (path, "ImagePullBackOff", "1"),
        (path, "Last", "1"),
    ]
