"""The HTTP route for routers: ``GET /v1/services/{name}/endpoints?index=N&wait=30s`` on a farm.

With the index of an earlier answer the request waits until the endpoints are others, like Consul's blocking
queries; at the end of the wait they are answered as they are. The index of equal endpoints is equal on every
farm, so a client may ask another farm each time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from farmd.services.board import Board, NotKnown, TooManyWaiting
from farmd.web.connections import parked
from store.errors import InputInvalid, NotFound
from store.quantities import seconds
from store.times import plain

INDEX_HEADER = "X-Farmd-Index"
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 300.0, 600.0


def add_routes(app: web.Application, board: Callable[[], Board | None]) -> None:
    """Mount the route; ``board`` is None until the farm has seen the store."""

    async def endpoints(request: web.Request) -> web.Response:
        there = board()
        if there is None:
            raise web.HTTPServiceUnavailable(text="this farm has not reached Consul yet")
        index = asked_index(request.query.get("index", "0"))
        longest = asked_wait(request.query.get("wait", f"{WAIT_SECONDS:g}")) if index else 0.0
        try:
            with parked(request) if longest else contextlib.nullcontext():
                found = await there.answer(request.match_info["name"], index, longest)
        except NotFound as error:
            raise web.HTTPNotFound(text=error.message) from error
        except TooManyWaiting as error:
            raise web.HTTPTooManyRequests(text=error.message) from error
        except NotKnown as error:
            raise web.HTTPServiceUnavailable(text=error.message) from error
        body = {
            "apiVersion": "farmd/v1",
            "kind": "EndpointList",
            "service": found.service.name,
            "port": found.service.port,
            "index": found.index,
            "items": plain(found.endpoints),
        }
        return web.json_response(body, headers={INDEX_HEADER: str(found.index)})

    async def close(_: web.Application) -> None:
        if (there := board()) is not None:
            await there.close()

    app.router.add_get("/v1/services/{name}/endpoints", endpoints)
    app.on_shutdown.append(close)


def asked_index(text: str) -> int:
    """The index of an earlier answer, or 0.

    Raises:
        HTTPBadRequest: it can be none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise web.HTTPBadRequest(text=f"index: found {text!r}, expected the index of an earlier answer, or 0")
    return int(text)


def asked_wait(text: str) -> float:
    """How long a request waits at most, in seconds.

    Raises:
        HTTPBadRequest: it is no time, or too long.
    """
    expected = f"a time up to {LONGEST_WAIT_SECONDS:g} seconds, such as 30s"
    try:
        found = seconds(text)
    except InputInvalid as error:
        raise web.HTTPBadRequest(text=f"wait: found {text!r}, expected {expected}") from error
    if found > LONGEST_WAIT_SECONDS:
        raise web.HTTPBadRequest(text=f"wait: found {text!r}, expected {expected}")
    return found


# ``GET /runbooks/{alert}.md``: what to do when an alert fires, of this farm's own version.
#
# Alerts link here, so the route needs neither a token nor Consul: a runbook has no secrets.


PATH = "/runbooks/"
# A wheel has them beside this module (pyproject.toml), a checkout where people edit them.
_FOLDERS = (Path(__file__).with_name("runbooks"), Path(__file__).parents[2] / "docs" / "runbooks")


def add_runbook_routes(app: web.Application) -> None:
    """Mount the route."""
    app.router.add_get(PATH + "{name}", _read_runbook)


async def _read_runbook(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    text = find_runbook(name)
    if text is None:
        raise web.HTTPNotFound(text=f"runbook: found {name[:80]!r}, expected one of an alert: Farmd….md")
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


def find_runbook(name: str) -> str | None:
    """The text of a runbook by its file's name; None: there is none."""
    if re.fullmatch(r"Farmd[A-Za-z]{1,60}\.md", name) is None:
        return None
    there = next((path for folder in _FOLDERS if (path := folder / name).is_file()), None)
    return None if there is None else there.read_text(encoding="utf-8")
