"""Serves an application on one address, by default on loopback: farms and agents by the same rules.

The socket is bound before all other parts are built: a port in use stops the process before it
touches the store, and the presence record can contain the chosen port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from farmd.observe.progress import Progress
from farmd.web.connections import CONNECTIONS, Connections
from store import access
from store.ports import Recorder

# The HTTP routes of a farm or an agent: ``/metrics``, ``/health``, ``/ready``, ``/v1/status``.
#
# No route changes anything. ``/health`` answers 503 if a loop is stalled: then restart the process.
# ``/ready`` answers 503 while the process waits for Consul: then a restart does not help. Both give the
# reason.

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
            raise web.HTTPBadRequest(text="body: found a broken encoding") from error
    return await handler(request)


async def _headers(_: web.Request, answer: web.StreamResponse) -> None:
    """The default headers of each answer, so that browsers treat it as data only."""
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
        if "Upgrade" in request.headers:
            headers[access.REFUSED] = " ".join((error.text or "").split())[:1000]
        return web.json_response(body, status=error.status, reason=error.reason, headers=headers)
    except Exception:  # the HTTP boundary
        log.exception("web.request_failed", method=request.method, path=request.path)
        body = {"error": {"code": "internal", "message": "see the log of this process"}}
        return web.json_response(body, status=500)


IDLE_SECONDS = 75.0
"""After so long a connection is closed that sends no request; a request may take as long as it wants."""
LONGEST_LINE, MOST_HEADERS = 8190, 64
"""Bytes of a request's first line, and of each of its headers."""


class CannotListen(Exception):
    """The address is in use or not of this machine, or nobody can be told it; one line that names it."""


@contextlib.contextmanager
def listening(bind: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; port 0 takes a free one.

    Raises:
        CannotListen: the address is in use or not of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise CannotListen(f"web.bind: cannot listen on {bind}:{port}: {reason}") from error
    with sock:
        yield sock


@contextlib.asynccontextmanager
async def serving(
    app: web.Application,
    sock: socket.socket,
    recorder: Recorder,
    port_file: str = "",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve until the block ends, with TLS or without.

    ``port_file`` gets the port once the server listens, so a process that waits for the file can connect.
    """
    logging.getLogger("aiohttp.server").addFilter(_ours)
    connections = app[CONNECTIONS] = Connections(sock, tls, recorder)
    # A request is handled from when its body is there: nobody holds a place by a body that does not come.
    after = app.middlewares.index(body_in_time) + 1 if body_in_time in app.middlewares else 0
    app.middlewares.insert(after, connections.handled)
    app.middlewares.insert(0, connections.arrived)
    runner = _runner(app)
    await runner.setup()
    assert runner.server is not None
    try:
        connections.start(runner.server)
        address, port = sock.getsockname()[:2]
        log.info("web.listening", address=address, port=port, tls=tls is not None)
        if port_file:
            _announce(Path(port_file), port)
        yield
    finally:
        if port_file:
            remove(Path(port_file))
        connections.stop()
        await runner.cleanup()
        connections.drop_all()


def _runner(app: web.Application) -> web.AppRunner:
    """What speaks HTTP. A peer without a credential may cost it little, whatever it sends.

    A body is unpacked for no route, also not one that no route reads: a megabyte of gzip can become a
    gigabyte. A connection ends after a request whose body nobody wanted. A request whose client hung up is
    cancelled, because its answer would be for nobody.
    """
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1.0,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=0,
        auto_decompress=False,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        max_headers=MOST_HEADERS,
    )


def _ours(record: logging.LogRecord) -> bool:
    """Whether a line of aiohttp's log tells of a fault of this process, and not of bytes that are no HTTP."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _announce(path: Path, port: int) -> None:
    try:
        write_whole(path, f"{port}\n")
    except OSError as error:
        raise CannotListen(f"web.port_file: {path}: {error.strerror or error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees a part of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    path.unlink(missing_ok=True)
