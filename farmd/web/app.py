"""The HTTP routes of a farm or an agent: ``/metrics``, ``/health``, ``/ready``, ``/v1/status``.

No route changes anything. ``/health`` answers 503 if a loop is stalled: then restart the process.
``/ready`` answers 503 while the process waits for Consul: then a restart does not help. Both give the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from farmd.observe.progress import Progress

log = structlog.get_logger()


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
    app = web.Application(middlewares=[errors_as_json], client_max_size=1024 * 1024)
    app.on_response_prepare.append(_headers)

    async def metrics(_request: web.Request) -> web.Response:
        subject.publish()
        body = generate_latest(subject.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

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


async def _headers(_: web.Request, answer: web.StreamResponse) -> None:
    """What each answer has that says nothing else: no browser takes it for more than the data that it is."""
    answer.headers.setdefault("X-Content-Type-Options", "nosniff")
    answer.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    answer.headers.setdefault("Cache-Control", "no-store")
    answer.headers["Server"] = "farmd"


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as one JSON object with a stable code; log an unknown error, never show it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = (error.reason or "error").lower().replace(" ", "_")
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        body = {"error": {"code": code, "message": error.text or ""}}
        return web.json_response(body, status=error.status, headers=headers)
    except Exception:  # the HTTP boundary
        log.exception("web.request_failed", method=request.method, path=request.path)
        body = {"error": {"code": "internal", "message": "see the log of this process"}}
        return web.json_response(body, status=500)
