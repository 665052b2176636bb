"""Guards of requests: the name of the host that a request asks for, and credentials that were refused.

A page of another site that turned its own name to loopback (DNS rebinding) reads what this machine serves to
itself, with the browser of somebody who works on it. Its requests still name the other site.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from store.ports import Clock, Recorder

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


# Counts and logs credentials that were refused, so that guessing is seen and cannot fill the log.


log = structlog.get_logger()

APART_SECONDS = 1.0
METRIC = "farmd_sign_ins_refused_total"


class Refusals:
    """All are counted; one in a second is logged, with the number of those before it that were not."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._logged = float("-inf")
        self._unsaid = 0

    def note(self, credential: Literal["token", "key"], peer: str | None, reason: str) -> None:
        """Note one refusal."""
        self._recorder.count(METRIC, credential=credential)
        if self._clock.mono() < self._logged + APART_SECONDS:
            self._unsaid += 1
            return
        log.warning("web.sign_in_refused", how=credential, peer=peer, reason=reason, unsaid=self._unsaid)
        self._logged, self._unsaid = self._clock.mono(), 0
