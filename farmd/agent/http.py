"""The agent's HTTP routes: its pods and their logs, for ``farmctl`` and the dashboard.

Read-only. An instance's name is looked up among the pods, and among those that were removed within the hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from aiohttp import web

from farmd.agent import logs
from farmd.agent.agent import Agent
from farmd.agent.disk import DiskSilent
from store.errors import InputInvalid
from store.manifests import MAIN
from store.ports import Clock
from store.times import plain, rfc3339

DEFAULT_LINES = 100
MOST_READING, MOST_FOLLOWED = 2, 100
"""Logs that are read at once, each in a thread, and logs that are followed."""
LONGEST_SINCE = 12
"""Digits of a number of seconds."""
_KNOWN = {"Farmd-Log-Times": "1"}


Parked = Callable[[web.Request], AbstractContextManager[None]]


def _anywhere(_: web.Request) -> AbstractContextManager[None]:
    return nullcontext()


def add_routes(app: web.Application, agent: Agent, clock: Clock, parked: Parked = _anywhere) -> None:
    """Mount ``GET /v1/pods``, ``GET /v1/usage``, ``GET /v1/pods/{instance}/usage`` and
    ``GET /v1/pods/{instance}/logs?lines=N&follow=1``. A pod without a control group has no usage (null);
    beside it stands how its output is forwarded.

    ``previous=1``: the output of the start before the last one. ``since=S``: that of the last S seconds.
    ``process=NAME``: that of a sidecar. ``timestamps=1``: each line begins with its time. The answer's header
    ``Farmd-Log-Times`` says that previous, since and timestamps are known; ``Farmd-Log-Gone`` is the time
    when the pod was removed. ``parked`` gives a request that follows a log its place, or refuses it.
    """
    closing = asyncio.Event()
    reading = asyncio.Semaphore(MOST_READING)
    followed = asyncio.Semaphore(MOST_FOLLOWED)

    async def pods(_: web.Request) -> web.Response:
        body = {
            "node": agent.config.node,
            "pods": plain(dict(sorted(agent.reality().items()))),
            "usage": plain(dict(sorted(agent.usages.found.items()))),
        }
        return web.json_response(body)

    async def usage(request: web.Request) -> web.Response:
        instance = request.match_info["instance"]
        if agent.pods.get(instance) is None:
            raise _unknown(instance)
        await agent.usages.look()
        found = agent.usages.found.get(instance)
        return web.json_response({"usage": plain(found), "logs": plain(agent.forwarder.of(instance))})

    async def usages(_: web.Request) -> web.Response:
        await agent.usages.look()
        return web.json_response({"usage": plain(dict(sorted(agent.usages.found.items())))})

    async def pod_logs(request: web.Request) -> web.StreamResponse:
        instance = request.match_info["instance"]
        directory, known = _log(agent, instance, request.query.get("process", MAIN))
        view = _View(directory, _choice(request, clock), _flag(request, "timestamps"), clock, reading)
        if _flag(request, "follow") and known is _KNOWN:
            if view.choice.previous:
                raise web.HTTPBadRequest(
                    text="follow: found 1, expected 0: a previous start writes no more\n"
                )
            if followed.locked():
                raise web.HTTPTooManyRequests(text=f"{MOST_FOLLOWED} logs are already followed here\n")
            async with followed:
                with parked(request):
                    return await _stream(request, view, closing)
        async with reading:
            body = await asyncio.to_thread(view.whole)
        if body is None:
            raise web.HTTPNotFound(text=f"{instance}: no output of a start before the last one is kept\n")
        return web.Response(body=body, content_type="text/plain", charset="utf-8", headers=known)

    async def close(_: web.Application) -> None:
        closing.set()

    app.router.add_get("/v1/pods", pods)
    app.router.add_get("/v1/pods/{instance}/usage", usage)
    app.router.add_get("/v1/usage", usages)
    app.router.add_get("/v1/pods/{instance}/logs", pod_logs)
    app.on_shutdown.append(close)


def _log(agent: Agent, instance: str, process: str) -> tuple[Path, dict[str, str]]:
    """The log of a process of a pod, or what is kept of the main one's of a pod that was removed; with the
    headers of the answer.
    """
    if (pod := agent.pods.get(instance)) is not None:
        names = {each.name for of in (pod.manifest, pod.target) if of is not None for each in of.sidecars}
        if process in names:
            return agent.state.logs(instance) / process, _KNOWN
        _require_main(instance, process, names)
        return agent.state.logs(instance), _KNOWN
    _require_main(instance, process, ())
    try:
        found = agent.gone.logs(instance)
    except InputInvalid as error:
        raise web.HTTPNotFound(text=f"{error.message}\n") from error
    except DiskSilent as error:
        raise web.HTTPServiceUnavailable(text=f"state_dir: {error.strerror}\n") from error
    if found is None:
        raise _unknown(instance)
    return found[0], _KNOWN | {"Farmd-Log-Gone": rfc3339(found[1])}


def _require_main(instance: str, process: str, names: Collection[str]) -> None:
    if process != MAIN:
        known = ", ".join((MAIN, *sorted(names)))
        raise web.HTTPNotFound(text=f"{instance}: process: found {process[:80]!r}, expected one of {known}\n")


def _unknown(instance: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=f"instance: found {instance!r}, expected a pod of this node\n")


class _View:
    """What one request wants to see of an instance's output."""

    def __init__(
        self,
        directory: Path,
        choice: logs.Choice,
        timestamps: bool,
        clock: Clock,
        reading: asyncio.Semaphore,
    ) -> None:
        self.directory = directory
        self.choice = choice
        self.timestamps = timestamps
        self.clock = clock
        self._reading = reading

    async def _old(self, until: int) -> bytes:
        async with self._reading:
            return await asyncio.to_thread(self.whole, until) or b""

    def whole(self, until: int | None = None) -> bytes | None:
        """The output, up to an offset in the current file; None: there was no start before the last one."""
        if not (self.choice.since or self.choice.previous or self.timestamps) and until is None:
            return logs.tail(self.directory, self.choice.last)
        lines = logs.chosen(self.directory, self.choice, until)
        if lines is None or not self.timestamps:
            return None if lines is None else b"".join(line.text for line in lines)
        return b"".join(logs.stamped(line.at, line.text) for line in lines)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The output and what follows, with the times of reading where times are wanted."""
        found = logs.follow(self.directory, self.choice.last, self.clock, self._old)
        old, ended = True, True
        try:
            async for piece in found:
                if old or not self.timestamps or not piece:
                    old = old and not piece
                    ended = piece.endswith(b"\n") if piece else ended
                    yield piece
                    continue
                yield logs.stamped_all(self.clock.now(), piece, begins=ended)
                ended = piece.endswith(b"\n")
        finally:
            await found.aclose()


async def _stream(request: web.Request, view: _View, closing: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"} | _KNOWN)
    await response.prepare(request)
    pieces = view.pieces()
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


def _choice(request: web.Request, clock: Clock) -> logs.Choice:
    text = request.query.get("since", "")
    if text and not (text.isascii() and text.isdigit() and len(text) <= LONGEST_SINCE):
        raise web.HTTPBadRequest(text=f"since: found {text[:80]!r}, expected whole seconds\n")
    since = clock.now() - int(text) if text else 0.0
    return logs.Choice(_lines(request), since, _flag(request, "previous"))


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
