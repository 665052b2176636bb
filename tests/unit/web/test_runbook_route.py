"""Whoever an alert wakes reads its runbook at any farm, without a token."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from aiohttp import web

from farmd.web import services
from tests.web_servers import serving_app

FOLDER = Path(__file__).parents[3] / "docs/runbooks"


async def test_each_runbook_is_served_and_nothing_else() -> None:
    app = web.Application()
    services.add_runbook_routes(app)
    async with serving_app(app) as url, aiohttp.ClientSession() as http:
        for path in FOLDER.glob("*.md"):
            async with http.get(f"{url}/runbooks/{path.name}") as answer:
                assert (answer.status, await answer.text()) == (200, path.read_text())
                assert answer.content_type == "text/plain"
        for name in ("FarmdNothing.md", "README.md", "..%2Fmonitoring.md", "FarmdNoFarm"):
            async with http.get(f"{url}/runbooks/{name}") as answer:
                assert answer.status == 404
