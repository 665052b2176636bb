"""The name of the host that a request asks for: what a page that turned its own name to loopback gives away.

Such a page of another site reads what this machine serves to itself, with the browser of somebody who works
on it (DNS rebinding). Its requests still name the other site.
"""

from __future__ import annotations

import ipaddress
import re

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:[0-9]{1,5})?")


def named(request: web.Request) -> str:
    """The name of the host that a request asks for; empty: it tells none.

    Raises:
        HTTPBadRequest: it is no name.
    """
    found = _HOST.fullmatch(request.headers.get("Host", ""))
    if found is None:
        raise web.HTTPBadRequest(text="Host: expected the name of a host, and perhaps a port")
    return found["name"].strip("[]")


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def only(bind: str, advertise: str) -> Middleware:
    """On loopback, refuse requests that ask for another host than this one, or than others are told."""

    @web.middleware
    async def asked(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = named(request)
        if loopback(bind) and not loopback(name) and name.lower() != advertise.lower():
            expected = "localhost, or web.advertise"
            raise web.HTTPMisdirectedRequest(text=f"Host: found {name[:80]!r}, expected {expected}\n")
        return await handler(request)

    return asked
