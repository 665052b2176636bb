"""``GET /runbooks/{alert}.md``: what to do when an alert fires, of this farm's own version.

Alerts link here, so the route needs neither a token nor Consul: a runbook has no secrets.
"""

from __future__ import annotations

import re
from pathlib import Path

from aiohttp import web

PATH = "/runbooks/"
# A wheel has them beside this module (pyproject.toml), a checkout where people edit them.
_FOLDERS = (Path(__file__).with_name("runbooks"), Path(__file__).parents[2] / "docs" / "runbooks")


def add_routes(app: web.Application) -> None:
    """Mount the route."""
    app.router.add_get(PATH + "{name}", _read)


async def _read(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    text = find(name)
    if text is None:
        raise web.HTTPNotFound(text=f"runbook: found {name[:80]!r}, expected one of an alert: Farmd….md")
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


def find(name: str) -> str | None:
    """The text of a runbook by its file's name; None: there is none."""
    if re.fullmatch(r"Farmd[A-Za-z]{1,60}\.md", name) is None:
        return None
    there = next((path for folder in _FOLDERS if (path := folder / name).is_file()), None)
    return None if there is None else there.read_text(encoding="utf-8")
