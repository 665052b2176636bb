"""Requests to one API server over pooled aiohttp connections.

This module must never send a write twice (aiohttp resends PUT and DELETE when a kept connection is dead),
follow a redirect, or report a request as unsent that may have left. A request that the server answers with
429 was not looked at, so it is sent again when ``Retry-After`` says, in the first half of its time.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import quote, urlencode

from yarl import URL

from farmd.kubernetes.access import Access, RequestIdentity
from farmd.kubernetes.errors import (
    Denials,
    KubernetesError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnknownOutcome,
    error_of,
)
from farmd.kubernetes.pace import Pace, Priority
from farmd.observe.metrics import STATUSES
from store.consul.authorities import aiohttp
from store.http import KEEP_ALIVE_SECONDS, reason
from store.ports import Clock, Recorder, Rng
from store.version import USER_AGENT

REQUEST_SECONDS = 10.0
CONNECT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 30.0
MAX_RETRY_AFTER_SECONDS = 30.0
GATEWAY_TIMEOUT = 504
JSON = "application/json"
READ_BUFFER = 1024 * 1024
NEVER_LEFT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


def connector(limit: int) -> aiohttp.TCPConnector:
    """Connections that are kept for the next request, ``limit`` at once; 0: any number.

    One that ends under TLS waits for the peer's goodbye, which Python before 3.12.7 awaits for ever.
    """
    return aiohttp.TCPConnector(
        limit=limit,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        enable_cleanup_closed=aiohttp.connector.NEEDS_CLEANUP_CLOSED,
    )


def sent_once(lost: Callable[[str, str, BaseException], Exception]) -> aiohttp.ClientMiddlewareType:
    """A middleware that raises ``lost(method, path, error)`` for a broken connection, before aiohttp sends a
    write a second time.
    """

    async def send(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.method == "GET":
            return await handler(request)
        try:
            return await handler(request)
        except NEVER_LEFT:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise lost(request.method, request.url.path, error) from error

    return send


def _unlimited() -> float:
    return math.inf


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request; ``resource`` is for the metrics, ``key`` names the job or the app that pays for it.

    ``user`` is who it is made as, if the caller may impersonate that user; empty: the caller. ``validity`` is
    asked before each sending: the seconds that it may take, or an error where nothing may be sent now.
    """

    method: str
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    content_type: str = JSON
    resource: str = "other"
    priority: Priority = Priority.READ
    key: str = ""
    user: str = ""
    validity: Callable[[], float] = _unlimited
    accept: str = JSON

    @property
    def write(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _lost(method: str, path: str, error: BaseException) -> UnknownOutcome:
    return UnknownOutcome(f"{method} {path}: no answer: {reason(error)}")


class KubernetesTransport:
    """Sends requests to one API server; build it inside a running loop, and close it."""

    def __init__(self, access: Access, *, clock: Clock, rng: Rng, metrics: Recorder | None = None) -> None:
        self.access = access
        self.pace = Pace(clock)
        self.denials = Denials(clock)
        self._clock, self._rng, self._metrics = clock, rng, metrics
        self._ahead: float | None = None
        self._dated = ""
        self._session = aiohttp.ClientSession(
            connector=connector(0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            middlewares=(sent_once(_lost),),
            read_bufsize=READ_BUFFER,
            skip_auto_headers=("Content-Type",),
        )

    async def __aenter__(self) -> KubernetesTransport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()
        await self._clock.sleep(0)  # connections under TLS are told of their end at the loop's next turn

    def now(self) -> float:
        """Seconds since the epoch by the API server's clock; by our own before its first answer."""
        return self._clock.now() if self._ahead is None else self._clock.mono() + self._ahead

    async def send(self, request: ApiRequest, timeout: float = REQUEST_SECONDS) -> bytes:
        """The body of a successful answer. ``timeout`` begins once there are a place and a credential for the
        request, and includes all repetitions.

        Raises:
            KubernetesError: the server's refusal by its type, or no answer.
            CredentialInvalid: no usable credential.
        """
        asked, first, renewed = self._clock.mono(), math.inf, False
        refused: TooManyRequests | None = None
        while True:
            async with self.pace.turn(request.priority, request.key):
                if first == math.inf and self._clock.mono() - asked > LONGEST_WAIT_SECONDS:
                    raise Unavailable(f"{request}: not sent within {LONGEST_WAIT_SECONDS:g} s")
                login = await self.access.credentials.login()  # a program may take a minute to print one
                sent = self._clock.mono()
                first = min(first, sent)
                if refused is not None and sent > first + timeout / 2:
                    raise refused  # with less time the outcome of a write might stay unknown
                if (left := min(first + timeout - sent, request.validity())) <= 0:
                    raise Unavailable(f"{request}: no time is left")
                try:
                    return await self._once(request, login, left)
                except TooManyRequests as error:
                    refused, pause = error, (retry_after(error) or 1.0) + self._rng.uniform(0, 0.5)
                    self.pace.congested(sent, pause)
                    if self._clock.mono() + pause > first + timeout / 2:
                        raise
                    await self._clock.sleep(pause)  # no other one is sent in its place meanwhile
                except Unauthorized:
                    if renewed:
                        raise
                    renewed = True
                    self.access.credentials.refused()
                except (Unavailable, UnknownOutcome) as error:
                    if isinstance(error.__cause__, TimeoutError) or error.status == GATEWAY_TIMEOUT:
                        self.pace.congested(sent)
                    raise

    @asynccontextmanager
    async def watch(self, request: ApiRequest, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on; a watch is over by itself after ``timeout`` at the latest.

        Raises:
            KubernetesError: as ``send``; while lines are read ``Unavailable``.
        """
        async with self.stream(request, timeout) as chunks:
            yield _lines(chunks)

    @asynccontextmanager
    async def stream(self, request: ApiRequest, timeout: float | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer as it comes, for at most ``timeout`` seconds (None: until the server ends it).

        Raises:
            KubernetesError: as ``send``; while it is read ``Unavailable``.
        """
        limit = aiohttp.ClientTimeout(total=timeout, connect=CONNECT_SECONDS)
        try:
            login = await self.access.credentials.login()
            async with self._open(request, login, limit) as answer:
                await self._check(request, answer)
                yield answer.content.iter_any()
        except NEVER_LEFT as error:
            raise self._cannot_connect(error) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{request}: {reason(error)}") from error

    async def _once(self, request: ApiRequest, login: RequestIdentity, timeout: float) -> bytes:
        # The connection has the shorter limit: when the whole one is over, the request has left.
        limit = aiohttp.ClientTimeout(total=timeout, connect=min(timeout / 2, CONNECT_SECONDS))
        server_side = ("timeout", f"{max(1, int(timeout * 1000))}ms")
        code = "none"
        try:
            async with self._open(request, login, limit, server_side) as answer:
                code = _code(answer.status)
                await self._check(request, answer)
                if answer.content_type != JSON:
                    raise UnexpectedAnswer(f"{request}: found {answer.content_type}, expected {JSON}")
                return await answer.read()
        except NEVER_LEFT as error:
            raise self._cannot_connect(error) from error
        except aiohttp.ClientResponseError as error:
            raise UnexpectedAnswer(f"{request}: the answer is not HTTP: {reason(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            kind = UnknownOutcome if request.write else Unavailable
            raise kind(f"{request}: no answer: {reason(error)}") from error
        finally:
            self._count(request, code)

    def _count(self, request: ApiRequest, code: str) -> None:
        if self._metrics is not None:
            self._metrics.count(
                "farmd_kubernetes_requests_total",
                verb=request.method.lower(),
                resource=request.resource,
                code=code,
            )

    def _open(
        self,
        request: ApiRequest,
        login: RequestIdentity,
        limit: aiohttp.ClientTimeout,
        *extra: tuple[str, str],
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        typed = {"Content-Type": request.content_type} if request.body else {}
        query = urlencode([*request.params, *extra])
        url = f"{self.access.url}{quote(request.path, safe='/:~.-_')}" + (f"?{query}" if query else "")
        return self._session.request(
            request.method,
            URL(url, encoded=True),
            data=request.body or None,
            headers={
                **login.headers,
                "Accept": request.accept,
                **typed,
                **({"Impersonate-User": request.user} if request.user else {}),
            },
            timeout=limit,
            allow_redirects=False,
            ssl=login.tls,
            server_hostname=self.access.server_name,
            proxy=self.access.proxy,
        )

    async def _check(self, request: ApiRequest, answer: aiohttp.ClientResponse) -> None:
        """Learn the time from an answer; raise the error of one that is no success."""
        self._learn_time(answer.headers)
        if not 200 <= answer.status < 300:
            raise await self._refusal(request, answer)  # not by a name: it would refer to itself

    async def _refusal(self, request: ApiRequest, answer: aiohttp.ClientResponse) -> KubernetesError:
        error = error_of(answer.status, await answer.read(), str(request), write=request.write)
        if answer.status == 403:
            self.denials.note(error)
        error.fields["retry_after"] = answer.headers.get("Retry-After", "")
        return error

    def _learn_time(self, headers: Mapping[str, str]) -> None:
        """Set the server's clock by the first answer of each of its seconds."""
        dated, self._dated = self._dated, headers.get("Date", "")
        if self._dated != dated and (stamp := email.utils.parsedate_tz(self._dated)) is not None:
            self._ahead = email.utils.mktime_tz(stamp) - self._clock.mono()

    def _cannot_connect(self, error: Exception) -> Unavailable:
        by = f" by the proxy {URL(self.access.proxy).origin()}" if self.access.proxy else ""
        return Unavailable(f"{self.access.url}: cannot connect{by}: {reason(error)}")


def retry_after(error: KubernetesError) -> float | None:
    """Seconds for which the server asked to be left alone; None: it did not."""
    told = str(error.fields.get("retry_after", ""))
    return min(float(told), MAX_RETRY_AFTER_SECONDS) if told.isdecimal() else None


def _code(status: int) -> str:
    """The status as a metric's label, whose values are closed."""
    return "200" if 200 <= status < 300 else str(status) if str(status) in STATUSES else "other"


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Each line of any length; aiohttp's own reading of lines has a limit below that of an object."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *lines, tail = rest.split(b"\n") if b"\n" in chunk else (rest,)
        for line in lines:
            if line:
                yield bytes(line)
        rest = bytearray(tail)
