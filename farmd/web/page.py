"""The routes of the page and of its JSON API, each imported when it is asked for the first time.

A farm that nobody looks at imports and keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from farmd.config.sections import WebSection
from farmd.kinds import load

if TYPE_CHECKING:
    from farmd.farm.farm import Farm
    from farmd.services.board import Board
    from farmd.web.site import Site

FREE = (
    ("GET", "/static/{name}", "farmd.web.actions:static"),
    ("GET", "/signin", "farmd.web.actions:form"),
    ("POST", "/signin", "farmd.web.actions:sign_in"),
    ("POST", "/signout", "farmd.web.actions:sign_out"),
)
"""Routes for everybody."""

READING = (
    ("GET", "/", "farmd.web.pages:fleet"),
    ("GET", "/audit", "farmd.web.pages:audited"),
    ("GET", "/map", "farmd.web.map:shown"),
    ("GET", "/events", "farmd.web.events:stream"),
    ("GET", "/{list}", "farmd.web.pages:listed"),
    ("GET", "/nodes/{node}/pods/{instance}", "farmd.web.pods:one"),
    ("GET", "/{list}/{name}", "farmd.web.pages:item"),
    ("GET", "/{list}/{name}/explain", "farmd.web.pages:explained"),
    ("GET", "/{list}/{name}/act/{word}", "farmd.web.planned:shown"),
    ("POST", "/{list}/{name}/act/{word}", "farmd.web.planned:by_form"),
    ("GET", "/v1/targets/{what}", "farmd.web.targets:answer"),
    ("GET", "/v1/openapi.json", "farmd.web.api:described"),
    ("GET", "/v1/audit", "farmd.web.api:audited"),
    ("GET", "/v1/{list}", "farmd.web.api:listed"),
    ("GET", "/v1/{list}/{name}", "farmd.web.api:item"),
    ("GET", "/v1/{list}/{name}/explain", "farmd.web.api:explained"),
    ("POST", "/rollouts/{name}/{word}", "farmd.web.actions:by_form"),
    ("POST", "/v1/rollouts/{name}/{word}", "farmd.web.actions:by_program"),
    ("POST", "/v1/{list}/{name}/{word}", "farmd.web.planned:by_program"),
)
"""Routes for whom may read; those that change something ask for more by themselves."""


class Door:
    """Lets requests in: builds the site at the first one, and calls their handlers."""

    def __init__(
        self,
        farm: Callable[[], Farm | None],
        section: WebSection,
        board: Callable[[], Board | None] = lambda: None,
    ) -> None:
        self._farm = farm
        self._board = board
        self._section = section
        self._site: Site | None = None

    def add_routes(self, app: web.Application) -> None:
        """Mount all routes."""
        for routes, free in ((FREE, True), (READING, False)):
            for method, path, handler in routes:
                app.router.add_route(method, path, self._entering(handler, free=free))
        app.on_shutdown.append(self._close)

    def _entering(
        self, handler: str, *, free: bool
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def enter(request: web.Request) -> web.StreamResponse:
            farm = self._farm()
            if farm is None:
                raise web.HTTPServiceUnavailable(text="this farm has not reached Consul yet")
            if self._site is None:
                self._site = load("farmd.web.site:Site")(farm, self._section, self._board)
            answer: web.StreamResponse = await load("farmd.web.visit:answered")(
                self._site, request, handler, free=free
            )
            return answer

        return enter

    async def _close(self, _: web.Application) -> None:
        if self._site is not None:
            await self._site.close()
