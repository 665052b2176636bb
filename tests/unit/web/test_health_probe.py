"""`farmd health`: what a container's health check sees, against the very application that farms serve."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry

from farmd.config.sections import WebSection
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.web.server import Subject, build_app, listening, serving
from farmd.web.tls import Unhealthy, ask
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock


@contextlib.asynccontextmanager
async def face(bind: str):
    """A served face, its port, and the progress that it reports."""
    registry, clock = CollectorRegistry(), VirtualClock()
    progress = Progress(clock, Metrics(registry))
    subject = Subject(registry, progress, lacks=lambda: "", status=dict, publish=lambda: None)
    with listening(bind, 0) as sock:
        async with serving(build_app(subject), sock, CountingRecorder()):
            yield sock.getsockname()[1], progress, clock


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
async def test_what_works_is_ok_wherever_it_listens(bind):
    async with face(bind) as (port, _, _):
        assert await asyncio.to_thread(ask, WebSection(bind=bind), port) == "ok"


async def test_a_stalled_loop_is_named():
    async with face("127.0.0.1") as (port, progress, clock):
        with progress.loop("locks", 5.0):
            await clock.advance(60.0)
            with pytest.raises(Unhealthy, match=r"^127\.0\.0\.1:\d+: stalled: locks$"):
                await asyncio.to_thread(ask, WebSection(), port)


async def test_nobody_there_is_said_in_one_line():
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(Unhealthy, match=r"^127\.0\.0\.1:\d+: Connection refused$"):
        await asyncio.to_thread(ask, WebSection(), port)


async def test_one_who_never_answers_is_given_up():
    with listening("127.0.0.1", 0) as sock, pytest.raises(Unhealthy, match="timed out"):
        await asyncio.to_thread(ask, WebSection(), sock.getsockname()[1], timeout=0.05)


async def test_what_is_no_farm_is_not_healthy():
    async def talk(_reader, writer):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nwat")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unhealthy, match="answered 404"):
            await asyncio.to_thread(ask, WebSection(), port)
