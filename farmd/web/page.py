"""The routes of the page and of its JSON API, each imported when it is asked for the first time.

A farm that nobody looks at imports and keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from farmd import web as page
from farmd.config.sections import WebSection

if TYPE_CHECKING:
    from farmd.farm.farm import Farm
    from farmd.services.board import Board
    from farmd.web.site import Site
    from farmd.web.visit import Handler

FREE = (
    ("GET", "/static/{name}", lambda: page.actions.static),
    ("GET", "/signin", lambda: page.actions.form),
    ("POST", "/signin", lambda: page.actions.sign_in),
    ("POST", "/signout", lambda: page.actions.sign_out),
)
"""Routes for everybody."""

READING = (
    ("GET", "/", lambda: page.pages.fleet),
    ("GET", "/audit", lambda: page.pages.audited),
    ("GET", "/map", lambda: page.pods.shown),
    ("GET", "/events", lambda: page.events.stream),
    ("GET", "/{list}", lambda: page.pages.listed),
    ("GET", "/nodes/{node}/pods/{instance}", lambda: page.pods.one),
    ("GET", "/{list}/{name}", lambda: page.pages.item),
    ("GET", "/{list}/{name}/explain", lambda: page.pages.explained),
    ("GET", "/{list}/{name}/act/{word}", lambda: page.planned.shown),
    ("POST", "/{list}/{name}/act/{word}", lambda: page.planned.by_form),
    ("GET", "/v1/targets/{what}", lambda: page.targets.answer),
    ("GET", "/v1/openapi.json", lambda: page.api.described),
    ("GET", "/v1/audit", lambda: page.api.audited),
    ("GET", "/v1/{list}", lambda: page.api.listed),
    ("GET", "/v1/{list}/{name}", lambda: page.api.item),
    ("GET", "/v1/{list}/{name}/explain", lambda: page.api.explained),
    ("POST", "/v1/{list}/{name}/{word}", lambda: page.planned.by_program),
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
        self, handler: Callable[[], Handler], *, free: bool
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def enter(request: web.Request) -> web.StreamResponse:
            farm = self._farm()
            if farm is None:
                raise web.HTTPServiceUnavailable(text="this farm has not reached Consul yet")
            if self._site is None:
                self._site = page.site.Site(farm, self._section, self._board)
            answer: web.StreamResponse = await page.visit.answered(self._site, request, handler, free=free)
            return answer

        return enter

    async def _close(self, _: web.Application) -> None:
        if self._site is not None:
            await self._site.close()
