"""Who may see the page and who may act: by a bearer token, or by a session that a token opened.

A session lies in a cookie alone, signed with a key of this process and the hash of its token, so that it ends
with the process, and at once when the token's line leaves the file. What must never break: nothing is changed
for a request that another site's page may have sent, and in doubt nobody may.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from farmd.config.sections import WebSection
from farmd.web.tokens import Line, Person, Tokens, fits, read
from store.credentials import CredentialFiles
from store.errors import CredentialInvalid
from store.ports import Clock

COOKIE = "farmd_session"
SESSION_SECONDS = 12 * 3600
FORWARDED = frozenset({"forwarded", "x-real-ip", "via"})


class SignInNeeded(Exception):
    """Reading needs a token here, and the request has none that fits."""


class Access:
    """Judges requests by the configuration and the file of tokens, which is read again when it changes."""

    def __init__(self, section: WebSection, clock: Clock) -> None:
        self._section = section
        self._clock = clock
        self._key = os.urandom(32)
        path = section.tokens
        self._read: Callable[[], Tokens] | None = (
            CredentialFiles([path], lambda: read(path), keeps=False) if path else None
        )

    @property
    def signs_in(self) -> bool:
        """Whether there is a file of tokens to sign in by."""
        return self._read is not None

    def reader(self, request: web.Request, person: Person | None) -> None:
        """Refuse a request that may not read.

        Raises:
            SignInNeeded: reading needs a token.
        """
        if person is None and not self._open(request):
            raise SignInNeeded

    def person(self, request: web.Request) -> Person | None:
        """Whose token or session a request has; None: it has none.

        Raises:
            HTTPUnauthorized: it has a token that fits nobody.
        """
        return self.bearer(request) or self._session(request.cookies.get(COOKIE, ""))

    def bearer(self, request: web.Request) -> Person | None:
        """Whose token a request has in its header; None: it has none there.

        Raises:
            HTTPUnauthorized: the token fits nobody.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        return self.verified(token.strip()).person

    def verified(self, token: str) -> Line:
        """The line of a token.

        Raises:
            HTTPUnauthorized: it is nobody's.
        """
        line = fits(self._tokens(), token)
        if line is None:
            raise web.HTTPUnauthorized(text="the token fits nobody in the file of web.tokens")
        return line

    # -- sessions -------------------------------------------------------------------------------
    def open_session(self, answer: web.Response, line: Line, *, secure: bool) -> None:
        """Give a browser a session of a token's line."""
        until = int(self._clock.now()) + SESSION_SECONDS
        body = f"{line.person.name}.{until}.{os.urandom(8).hex()}"
        cookie = f"{body}.{self._mac(line, body)}"
        answer.set_cookie(
            COOKIE, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="Strict", secure=secure
        )

    def _session(self, cookie: str) -> Person | None:
        body, _, mac = cookie.rpartition(".")
        name, _, rest = body.partition(".")
        until = rest.partition(".")[0]
        try:
            line = self._tokens().get(name) if body and self._read is not None else None
        except web.HTTPServiceUnavailable:
            return None
        if line is None or not _same(mac, self._mac(line, body)):
            return None
        return line.person if int(until) > self._clock.now() else None

    def form_key(self, request: web.Request) -> str:
        """What a form of this session must bring, so that no other site can send it."""
        return self._sign(_encoded(f"form {request.cookies.get(COOKIE, '')}"))

    def of_form(self, request: web.Request, key: str) -> None:
        """Refuse a form that this page did not give to this session.

        Raises:
            HTTPForbidden: it comes from elsewhere.
        """
        same_origin(request)
        if not _same(key, self.form_key(request)):
            raise web.HTTPForbidden(text="this form is not of this session: load the page again")

    def _mac(self, line: Line, body: str) -> str:
        return self._sign(line.digest + _encoded(body))

    def _sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()

    def _tokens(self) -> Tokens:
        if self._read is None:
            raise web.HTTPUnauthorized(text="this farm knows no tokens: web.tokens is not configured")
        try:
            return self._read()
        except CredentialInvalid as error:
            raise web.HTTPServiceUnavailable(
                text="the file of web.tokens is not usable: see the log"
            ) from error

    def _open(self, request: web.Request) -> bool:
        """Whether reading needs no token: told so, or on loopback where no tokens are configured.

        What names another host or a proxy comes from elsewhere, or from a page that turned its own name to
        loopback. A proxy that says nothing of itself cannot be told from a program of this machine.
        """
        if self._section.read != "auto":
            return self._section.read == "open"
        if self._section.tokens or not loopback(self._section.bind):
            return False
        return loopback(_named(request)) and not any(map(_of_proxy, request.headers))


def same_origin(request: web.Request) -> None:
    """Refuse what a page of another site sent.

    Raises:
        HTTPForbidden: it did, or the browser does not tell.
    """
    origin, host = request.headers.get("Origin", ""), request.headers.get("Host", "")
    _, _, named = origin.partition("://")
    if not host or named.lower() != host.lower():
        raise web.HTTPForbidden(text=f"Origin: found {origin[:80]!r}, expected this farm's own")


def _named(request: web.Request) -> str:
    """The name of the host that a request asks for; empty: it tells none."""
    try:
        return urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError as error:
        raise web.HTTPBadRequest(text="Host: expected the name of a host") from error


def _of_proxy(header: str) -> bool:
    return header.lower() in FORWARDED or header.lower().startswith("x-forwarded-")


def _same(found: str, expected: str) -> bool:
    return hmac.compare_digest(_encoded(found), _encoded(expected))


def _encoded(text: str) -> bytes:
    """Bytes of any text, also of one that a client sent as no valid UTF-8."""
    return text.encode(errors="replace")


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
