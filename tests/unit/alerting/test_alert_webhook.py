"""The webhook against a real HTTP server: format, signature, retries, refusals, time limit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from alerting.alert import Alert
from alerting.errors import DeliveryFailed, DeliveryRefused
from alerting.sinks import SIGNATURE_HEADER, TIMESTAMP_HEADER, Poster, WebhookSink, sign, verify
from tests.still_clock import StillClock

ALERT = Alert(
    summary="not enough nodes",
    incident_key="rc1",
    description="3 of 5",
    details={"rc_id": "rc1"},
    item="rc/web",
    links={"page": "https://farm/controllers/web"},
    since=4_000.0,
)
SECRET = b"a secret"


class Receiver:
    """Answers with the given statuses in turn, the last one for ever; 0 means: never answer."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.release = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == 0:
            await self.release.wait()
        return web.Response(status=status or 200, headers={"Location": "/elsewhere"})


@asynccontextmanager
async def sink_to(
    receiver: Receiver, clock: StillClock, secret: Callable[[], bytes] = bytes, timeout: float = 5.0
) -> AsyncIterator[WebhookSink]:
    app = web.Application()
    app.router.add_post("/hook", receiver.handle)
    server = TestServer(app)
    await server.start_server()
    try:
        async with aiohttp.ClientSession() as session:
            poster = Poster(session, clock, random.Random(1), timeout=timeout)
            yield WebhookSink(poster, str(server.make_url("/hook")), clock, secret=secret)
    finally:
        receiver.release.set()
        await server.close()


async def test_the_body_is_version_1_and_signed_over_the_time() -> None:
    receiver, clock = Receiver(204), StillClock(5_000.0)
    async with sink_to(receiver, clock, lambda: SECRET) as sink:
        await sink.deliver(ALERT)
    headers, body = receiver.got[0]
    assert json.loads(body) == {
        "version": 1,
        "state": "firing",
        "incident_key": "rc1",
        "summary": "not enough nodes",
        "description": "3 of 5",
        "urgency": "low",
        "details": {"rc_id": "rc1"},
        "at": "1970-01-01T01:23:20.000Z",
        "labels": {},
        "name": "FarmdNoPlace",
        "item": "rc/web",
        "since": "1970-01-01T01:06:40.000Z",
        "links": {"page": "https://farm/controllers/web"},
    }
    stamp, signature = headers[TIMESTAMP_HEADER], headers[SIGNATURE_HEADER]
    assert verify(SECRET, stamp, body, signature, now=5_010.0)
    assert not verify(SECRET, stamp, body + b" ", signature, now=5_010.0)
    assert not verify(b"another", stamp, body, signature, now=5_010.0)
    assert not verify(SECRET, "5001", body, signature, now=5_010.0)
    assert not verify(SECRET, stamp, body, signature, now=5_301.0)
    assert not verify(SECRET, "soon", body, signature, now=5_010.0)


def test_the_signature_is_plain_hmac_sha256_of_stamp_dot_body() -> None:
    assert sign(b"key", 1, b"{}") == "sha256=" + _reference(b"key", b"1.{}")


def _reference(key: bytes, message: bytes) -> str:
    """RFC 2104, spelled out."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).hexdigest()


async def test_without_a_secret_nothing_is_signed() -> None:
    receiver = Receiver(200)
    async with sink_to(receiver, StillClock()) as sink:
        await sink.deliver(ALERT)
    assert SIGNATURE_HEADER not in receiver.got[0][0]


async def test_a_failing_receiver_is_tried_again_and_each_attempt_is_signed_anew() -> None:
    receiver, clock = Receiver(503, 429, 408, 200), StillClock(1_000.0)
    async with sink_to(receiver, clock, lambda: SECRET) as sink:
        await sink.deliver(ALERT)
    assert len(receiver.got) == 4
    assert clock.seconds - 1_000.0 <= 0.5 + 1 + 2
    assert clock.seconds - 1_000.0 >= (0.5 + 1 + 2) / 2
    for headers, body in receiver.got:
        assert verify(SECRET, headers[TIMESTAMP_HEADER], body, headers[SIGNATURE_HEADER], now=clock.seconds)


async def test_attempts_are_bounded_and_the_last_reason_is_told() -> None:
    receiver = Receiver(500)
    async with sink_to(receiver, StillClock()) as sink:
        with pytest.raises(DeliveryFailed, match="status 500, expected 2xx"):
            await sink.deliver(ALERT)
    assert len(receiver.got) == 5


@pytest.mark.parametrize("status", [400, 401, 403, 404, 302])
async def test_a_refusal_is_final_and_redirects_are_not_followed(status: int) -> None:
    receiver = Receiver(status)
    async with sink_to(receiver, StillClock()) as sink:
        with pytest.raises(DeliveryRefused, match=f"status {status}"):
            await sink.deliver(ALERT)
    assert len(receiver.got) == 1


async def test_a_receiver_that_never_answers_costs_one_timeout_an_attempt() -> None:
    receiver = Receiver(0)
    async with sink_to(receiver, StillClock(), timeout=0.05) as sink:
        with pytest.raises(DeliveryFailed, match="no answer within"):
            await sink.deliver(ALERT)
    assert len(receiver.got) == 5


async def test_an_unreachable_receiver_is_a_failed_delivery_without_its_address() -> None:
    async with aiohttp.ClientSession() as session:
        poster = Poster(session, StillClock(), random.Random(1))
        sink = WebhookSink(poster, "http://127.0.0.1:1/secret-path", StillClock())
        with pytest.raises(DeliveryFailed) as failed:
            await sink.deliver(ALERT)
    assert "secret-path" not in failed.value.message


async def test_a_receiver_that_is_down_is_told_with_its_error_and_never_with_the_path_of_its_address() -> (
    None
):
    async with aiohttp.ClientSession() as session:
        poster = Poster(session, StillClock(), random.Random(1), timeout=5.0)
        sink = WebhookSink(poster, "http://127.0.0.1:1/s3cret", StillClock(), secret=bytes)
        with pytest.raises(DeliveryFailed, match="connection failed: Connect") as failed:
            await sink.deliver(ALERT)
    assert "s3cret" not in failed.value.message
    assert "ClientConnectorError" not in failed.value.message
