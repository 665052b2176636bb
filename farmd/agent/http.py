"""The agent's part of the HTTP face: its pods and their logs, for ``farmctl`` and the dashboard.

Read-only. An instance is looked up among the pods and never becomes a path by itself.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from farmd.agent import logs
from farmd.agent.agent import Agent
from store.ports import Clock

DEFAULT_LINES = 100
CLOSED_LOOK_SECONDS = 1.0


def add_routes(app: web.Application, agent: Agent, clock: Clock) -> None:
    """Mount ``GET /v1/pods`` and ``GET /v1/pods/{instance}/logs?lines=N&follow=1``."""

    async def pods(_: web.Request) -> web.Response:
        body = {"node": agent.config.node, "pods": dict(sorted(agent.reality().items()))}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def pod_logs(request: web.Request) -> web.StreamResponse:
        instance = request.match_info["instance"]
        if agent.pods.get(instance) is None:
            raise web.HTTPNotFound(text=f"instance: found {instance!r}, expected a pod of this node\n")
        lines = _lines(request)
        directory = agent.state.logs(instance)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        await response.write(logs.tail(directory, lines))
        if request.query.get("follow") in {"1", "true"}:
            await _follow(request, response, directory=directory, agent=agent, clock=clock)
        await response.write_eof()
        return response

    app.router.add_get("/v1/pods", pods)
    app.router.add_get("/v1/pods/{instance}/logs", pod_logs)
