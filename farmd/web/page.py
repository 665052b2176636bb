"""The routes of the page and of its JSON API, each imported when it is asked for the first time.

A farm that nobody looks at imports and keeps nothing of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from farmd.kinds import load

if TYPE_CHECKING:
    from farmd.farm.farm import Farm
    from farmd.web.site import Site

Handler = Callable[["Site", web.Request], Awaitable[web.StreamResponse]]

ROUTES = (
    ("GET", "/static/{name}", "farmd.web.html:static"),
    ("GET", "/events", "farmd.web.events:stream"),
    ("GET", "/{list}", "farmd.web.pages:listed"),
)


class Door:
    """Lets requests in: builds the site at the first one, and calls their handlers."""

    def __init__(self, farm: Callable[[], Farm | None], bind: str) -> None:
        self._farm = farm
        self._open = _loopback(bind)
        self._site: Site | None = None

    def add_routes(self, app: web.Application) -> None:
        """Mount all routes."""
        for method, path, handler in ROUTES:
            app.router.add_route(method, path, self._entering(handler))
        app.on_shutdown.append(self._close)

    def _entering(self, name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def enter(request: web.Request) -> web.StreamResponse:
            if not self._open:
                raise web.HTTPForbidden(text="the page is served on loopback only")
            farm = self._farm()
            if farm is None:
                raise web.HTTPServiceUnavailable(text="this farm has not reached Consul yet")
            if self._site is None or self._site.farm is not farm:
                self._site = load("farmd.web.site:Site")(farm)
            handler: Any = load(name)
            answer: web.StreamResponse = await handler(self._site, request)
            return answer

        return enter

    async def _close(self, _: web.Application) -> None:
        if self._site is not None:
            await self._site.close()


def _loopback(bind: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"
