"""The HTTP routes of a farm or an agent: ``/metrics``, ``/health``, ``/ready``, ``/v1/status``.

No route changes anything. ``/health`` answers 503 if a loop is stalled: then restart the process.
``/ready`` answers 503 while the process waits for Consul: then a restart does not help. Both give the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from farmd.observe.progress import Progress

log = structlog.get_logger()

LARGEST_BODY = 64 * 1024
BODY_SECONDS = 10.0
SCRAPE_PAUSES = 4.0
"""After metrics were made, they are good for so many times as long as it took."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that the routes describe. ``status`` answers ``/v1/status``: plain values, no secrets."""

    registry: CollectorRegistry
    progress: Progress
    lacks: Callable[[], str]
    """What the process waits for; empty if it is ready."""
    status: Callable[[], Mapping[str, Any]]
    publish: Callable[[], None]
    """Writes the metrics that are computed only for a scrape."""


def build_app(subject: Subject) -> web.Application:
    """Build the application; an agent adds its own routes before it is served."""
    app = web.Application(middlewares=[errors_as_json, body_in_time], client_max_size=LARGEST_BODY)
    app.on_response_prepare.append(_headers)
    scrape = Scrape(subject)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await scrape.body(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_request: web.Request) -> web.Response:
        stalled = subject.progress.stalled()
        state = {
            "health": "stalled" if stalled else "ok",
            "stalled": stalled,
            "seconds_since_progress": {name: round(age, 1) for name, age in subject.progress.ages().items()},
        }
        return web.json_response(state, status=503 if stalled else 200)

    async def ready(_request: web.Request) -> web.Response:
        reason = subject.lacks()
        return web.json_response({"ready": not reason, "reason": reason}, status=503 if reason else 200)

    async def status(_request: web.Request) -> web.Response:
        reason = subject.lacks()
        return web.json_response(
            {**subject.status(), "ready": not reason, "reason": reason, "stalled": subject.progress.stalled()}
        )

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/v1/status", status)
    return app


class Scrape:
    """All metrics as text, made off the event loop, by one request for all that ask meanwhile.

    Anybody may ask for them, so making them takes no more than a part of the processor.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._one = asyncio.Lock()
        self._made = b""
        self._good_until = float("-inf")

    async def body(self) -> bytes:
        """The metrics as they are now, or were a moment ago."""
        async with self._one:
            now = asyncio.get_running_loop().time
            began = now()
            if began >= self._good_until:
                self._subject.publish()
                self._made = await asyncio.to_thread(generate_latest, self._subject.registry)
                self._good_until = now() + (now() - began) * SCRAPE_PAUSES
            return self._made


@web.middleware
async def body_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the body of a request that may have one before it is handled: small, soon, and not packed."""
    known = request.match_info.http_exception is None
    if known and request.body_exists and request.method not in {"GET", "HEAD"}:
        if packed := request.headers.get("Content-Encoding", ""):
            text = f"Content-Encoding: found {packed[:40]!r}, expected none"
            raise web.HTTPUnsupportedMediaType(text=text)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await request.read()
        except TimeoutError as error:
            raise web.HTTPRequestTimeout(
                text=f"body: expected all of it within {BODY_SECONDS:g} s"
            ) from error
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text="body: found one that does not end as it began") from error
    return await handler(request)


async def _headers(_: web.Request, answer: web.StreamResponse) -> None:
    """What each answer has that says nothing else: no browser takes it for more than the data that it is."""
    answer.headers.setdefault("X-Content-Type-Options", "nosniff")
    answer.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    answer.headers.setdefault("Cache-Control", "no-store")
    answer.headers["Server"] = "farmd"


_KEPT = ("Allow", "WWW-Authenticate")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as one JSON object with a stable code; log an unknown error, never show it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = HTTPStatus(error.status).phrase.lower().replace(" ", "_")
        headers = {name: error.headers[name] for name in _KEPT if name in error.headers}
        body = {"error": {"code": code, "message": error.text or ""}}
        return web.json_response(body, status=error.status, reason=error.reason, headers=headers)
    except Exception:  # the HTTP boundary
        log.exception("web.request_failed", method=request.method, path=request.path)
        body = {"error": {"code": "internal", "message": "see the log of this process"}}
        return web.json_response(body, status=500)
