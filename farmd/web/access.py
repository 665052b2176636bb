"""Who may see the page and who may act: by a bearer token, or by a session that a token opened.

A session lies in a cookie alone, signed with a key of this process and the hash of its token, so that it ends
with the process, and at once when the token's line leaves the file. What must never break: nothing is changed
for a request that another site's page may have sent, and in doubt nobody may.
"""

from __future__ import annotations

import asyncio
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
MOST_KNOWN, MOST_ASKING = 1000, 8
WRONG_SECONDS = 1.0


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
            CredentialFiles([path], lambda: read(path)) if path else None
        )
        self._known: dict[bytes, Line] = {}
        self._asking = 0
        self._one_at_a_time = asyncio.Lock()

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

    async def person(self, request: web.Request) -> Person | None:
        """Whose token or session a request has; None: it has none.

        Raises:
            HTTPUnauthorized: it has a token that fits nobody.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return await self.verified(token.strip())
        return self._session(request.cookies.get(COOKIE, ""))

    async def verified(self, token: str) -> Person:
        """Whose token it is.

        Raises:
            HTTPUnauthorized: nobody's. HTTPTooManyRequests: too many ask at once.
        """
        tokens = self._tokens()
        mark = hashlib.sha256(token.encode()).digest()
        if (known := self._known.get(mark)) is not None and tokens.get(known.person.name) == known:
            return known.person
        if self._asking >= MOST_ASKING:
            raise web.HTTPTooManyRequests(text="too many tokens are being checked here, try again")
        self._asking += 1
        try:
            async with self._one_at_a_time:
                person = await asyncio.to_thread(fits, tokens, token)
                if person is None:  # guesses are slow, however many ask
                    await self._clock.sleep(WRONG_SECONDS)
        finally:
            self._asking -= 1
        if person is None:
            raise web.HTTPUnauthorized(text="the token fits nobody in the file of web.tokens")
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[mark] = tokens[person.name]
        return person

    # -- sessions -------------------------------------------------------------------------------
    def open_session(self, answer: web.Response, person: Person, *, secure: bool) -> None:
        """Give a browser a session."""
        until = int(self._clock.now()) + SESSION_SECONDS
        body = f"{person.name}.{until}.{os.urandom(8).hex()}"
        cookie = f"{body}.{self._mac(self._tokens()[person.name], body)}"
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
        if line is None or not hmac.compare_digest(mac, self._mac(line, body)):
            return None
        return line.person if int(until) > self._clock.now() else None

    def form_key(self, request: web.Request) -> str:
        """What a form of this session must bring, so that no other site can send it."""
        return self._sign(f"form {request.cookies.get(COOKIE, '')}".encode())

    def of_form(self, request: web.Request, key: str) -> None:
        """Refuse a form that this page did not give to this session.

        Raises:
            HTTPForbidden: it comes from elsewhere.
        """
        same_origin(request)
        if not hmac.compare_digest(key, self.form_key(request)):
            raise web.HTTPForbidden(text="this form is not of this session: load the page again")

    def _mac(self, line: Line, body: str) -> str:
        return self._sign(line.digest + body.encode())

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
        """Whether reading needs no token: told so, or on loopback and asked for by such a name.

        By another name a request came through a proxy, or from a page that turned its own name to loopback.
        """
        if self._section.read != "auto":
            return self._section.read == "open"
        return loopback(self._section.bind) and loopback(urlsplit(f"//{request.host}").hostname or "")


def same_origin(request: web.Request) -> None:
    """Refuse what a page of another site sent.

    Raises:
        HTTPForbidden: it did, or the browser does not tell.
    """
    origin = request.headers.get("Origin", "")
    if urlsplit(origin).netloc.lower() != request.host.lower():
        raise web.HTTPForbidden(text=f"Origin: found {origin[:80]!r}, expected this farm's own")


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
