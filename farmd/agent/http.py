"""The agent's HTTP routes: its pods and their logs, for ``farmctl`` and the dashboard.

Read-only. An instance's name is looked up among the pods and never used as a path directly.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from farmd.agent import logs
from farmd.agent.agent import Agent
from store.ports import Clock
from store.times import plain

DEFAULT_LINES = 100


def add_routes(app: web.Application, agent: Agent, clock: Clock) -> None:
    """Mount ``GET /v1/pods`` and ``GET /v1/pods/{instance}/logs?lines=N&follow=1``."""
    closing = asyncio.Event()

    async def pods(_: web.Request) -> web.Response:
        body = {"node": agent.config.node, "pods": plain(dict(sorted(agent.reality().items())))}
        return web.json_response(body)

    async def pod_logs(request: web.Request) -> web.StreamResponse:
        instance = request.match_info["instance"]
        if agent.pods.get(instance) is None:
            raise web.HTTPNotFound(text=f"instance: found {instance!r}, expected a pod of this node\n")
        lines = _lines(request)
        directory = agent.state.logs(instance)
        if not _flag(request, "follow"):
            return web.Response(body=logs.tail(directory, lines), content_type="text/plain", charset="utf-8")
        return await _stream(request, directory, lines, clock, closing)

    async def close(_: web.Application) -> None:
        closing.set()

    app.router.add_get("/v1/pods", pods)
    app.router.add_get("/v1/pods/{instance}/logs", pod_logs)
    app.on_shutdown.append(close)


async def _stream(
    request: web.Request, directory: Path, lines: int, clock: Clock, closing: asyncio.Event
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    pieces = logs.follow(directory, lines, clock)
    try:
        async for piece in pieces:
            # The empty write shows that the reader left, also while the log does not grow.
            if closing.is_set() or request.transport is None or request.transport.is_closing():
                break
            if piece:
                await response.write(piece)
        await response.write_eof()
    except ConnectionResetError:
        pass  # the reader closed the connection
    finally:
        await pieces.aclose()
    return response


def _lines(request: web.Request) -> int:
    text = request.query.get("lines", str(DEFAULT_LINES))
    if not text.isascii() or not text.isdigit() or int(text) > logs.MAX_LINES:
        raise web.HTTPBadRequest(text=f"lines: found {text!r}, expected 0 to {logs.MAX_LINES}\n")
    return int(text)


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "0")
    if text not in {"0", "1", "false", "true"}:
        raise web.HTTPBadRequest(text=f"{name}: found {text!r}, expected 0 or 1\n")
    return text in {"1", "true"}
