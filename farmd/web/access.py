"""Access to the page and to its actions: by a bearer token, or by a session that a token opened.

What must never break: nothing is changed for a request that another site's page may have sent, and in doubt
nobody may.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from farmd.config.sections import WebSection
from farmd.web.hosts import Refusals, loopback, named
from farmd.web.tokens import Person, TokenLine, Tokens, fits, read
from store.credentials import CredentialFiles
from store.errors import CredentialInvalid
from store.ports import Clock

# Sessions of browsers: a random id in a cookie, and in this process alone whose it is.
#
# So a session ends with the process, with its time, when somebody signs out, also for a copy of the cookie,
# and at once when its token's line leaves the file.

SECONDS = 12 * 3600
MOST_EACH = 20
"""A person's sessions; one more ends the oldest."""


class _Session(NamedTuple):
    line: TokenLine
    until: float


class Sessions:
    """The open ones, by a hash of their id, so that no comparison tells how near a guess was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[bytes, _Session] = {}

    def opened(self, line: TokenLine) -> str:
        """The id of a new session of a token's line."""
        now = self._clock.now()
        self._open = {key: each for key, each in self._open.items() if each.until > now}
        same = [key for key, each in self._open.items() if each.line.person.name == line.person.name]
        for key in same[: max(0, len(same) + 1 - MOST_EACH)]:
            del self._open[key]
        made = os.urandom(32).hex()
        self._open[_key(made)] = _Session(line, now + SECONDS)
        return made

    def person(self, ident: str, tokens: Tokens) -> Person | None:
        """Whose session it is, if its token's line stands as it stood; None: nobody's."""
        found = self._open.get(_key(ident))
        if found is None or found.until <= self._clock.now():
            return None
        return found.line.person if tokens.get(found.line.person.name) == found.line else None

    def end(self, ident: str) -> None:
        """End a session; one that is not open is ended."""
        self._open.pop(_key(ident), None)


def _key(ident: str) -> bytes:
    return hashlib.sha256(ident.encode(errors="replace")).digest()


COOKIE = "farmd_session"
SECURE_COOKIE = "__Host-farmd_session"
"""Over HTTPS: browsers take it from that very host alone, and never without TLS."""
FORWARDED = frozenset({"forwarded", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "via"})


class SignInNeeded(Exception):
    """Reading needs a token here, and the request has none that fits."""


class Access:
    """Judges requests by the configuration and the file of tokens, which is read again when it changes."""

    def __init__(self, section: WebSection, clock: Clock, refusals: Refusals) -> None:
        self._section = section
        self._refusals = refusals
        self.sessions = Sessions(clock)
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
        return self.bearer(request) or self._session(cookie(request))

    def bearer(self, request: web.Request) -> Person | None:
        """Whose token a request has in its header; None: it has none there.

        Raises:
            HTTPUnauthorized: the token fits nobody.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        return self.verified(token.strip(), request).person

    def verified(self, token: str, request: web.Request) -> TokenLine:
        """The line of a token that a request brings.

        Raises:
            HTTPUnauthorized: it is nobody's.
        """
        tokens = self._tokens()
        line = fits(tokens, token)
        if line is None:
            name = token.partition(".")[0]  # never the token itself, which may be mistyped
            self._refusals.note("token", request.remote, f"as {name}" if name in tokens else "unknown name")
            raise web.HTTPUnauthorized(text="the token is not in the file of web.tokens")
        return line

    # -- sessions -------------------------------------------------------------------------------
    def open_session(
        self, request: web.Request, answer: web.Response, line: TokenLine, *, secure: bool
    ) -> None:
        """Give a browser a session of a token's line, and end the one that it has; ``secure``: over HTTPS."""
        self.sessions.end(cookie(request))
        answer.set_cookie(
            SECURE_COOKIE if secure else COOKIE,
            self.sessions.opened(line),
            max_age=SECONDS,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )

    def end_session(self, request: web.Request, answer: web.Response) -> None:
        """End the session of a browser, also for who copied its cookie."""
        self.sessions.end(cookie(request))
        for name in {COOKIE, SECURE_COOKIE} & request.cookies.keys():
            answer.del_cookie(name, httponly=True, samesite="Strict", secure=name == SECURE_COOKIE)

    def _session(self, ident: str) -> Person | None:
        if not ident or self._read is None:
            return None
        try:
            return self.sessions.person(ident, self._tokens())
        except web.HTTPServiceUnavailable:
            return None

    def form_key(self, request: web.Request) -> str:
        """What a form of this session must bring, so that no other site can send it."""
        return self._sign(_encoded(f"form {cookie(request)}"))

    def of_form(self, request: web.Request, key: str) -> None:
        """Refuse a form that this page did not give to this session.

        Raises:
            HTTPForbidden: it comes from elsewhere.
        """
        same_origin(request)
        if not _same(key, self.form_key(request)):
            raise web.HTTPForbidden(text="this form belongs to another session: reload the page")

    def _sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()

    def _tokens(self) -> Tokens:
        if self._read is None:
            raise web.HTTPUnauthorized(text="there are no tokens here: web.tokens is not configured")
        try:
            return self._read()
        except CredentialInvalid as error:
            raise web.HTTPServiceUnavailable(
                text="the file of web.tokens cannot be used: see the log"
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
        return loopback(named(request)) and not any(map(of_proxy, request.headers))


def for_metrics(access: Access) -> Middleware:
    """Refuse requests for the metrics without a token."""

    @web.middleware
    async def asked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/metrics" and access.bearer(request) is None:
            text = "metrics need a token here (web.metrics): Authorization: Bearer"
            raise web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return asked


def cookie(request: web.Request) -> str:
    """The id of a session that a request brings. Over TLS of our own only a cookie that came so is taken."""
    plain = "" if request.secure else request.cookies.get(COOKIE, "")
    return request.cookies.get(SECURE_COOKIE, "") or plain


def same_origin(request: web.Request) -> None:
    """Refuse what a page of another site sent.

    Raises:
        HTTPForbidden: it did, or the browser does not tell.
    """
    origin, host = request.headers.get("Origin", ""), request.headers.get("Host", "")
    scheme, _, named = origin.partition("://")
    plain = request.secure and scheme != "https"
    if not host or plain or named.lower() != host.lower():
        raise web.HTTPForbidden(text=f"Origin: found {origin[:80]!r}, expected this farm's own")


def of_proxy(header: str) -> bool:
    return header.lower() in FORWARDED or header.lower().startswith("x-forwarded-")


def _same(found: str, expected: str) -> bool:
    return hmac.compare_digest(_encoded(found), _encoded(expected))


def _encoded(text: str) -> bytes:
    """Bytes of any text, also of one that a client sent as no valid UTF-8."""
    return text.encode(errors="replace")
