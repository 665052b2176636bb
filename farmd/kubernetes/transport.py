"""Requests to one API server over pooled connections.

This module must never send a write twice, follow a redirect, or report a request as unsent that may have
left. A request that the server answers with 429 was not looked at, so it is sent again when ``Retry-After``
says, in the first half of its time.
"""

from __future__ import annotations

import email.utils
import functools
import math
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import quote, urlencode, urlsplit

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
from store import http
from store.ports import Clock, Recorder, Rng
from store.version import USER_AGENT

REQUEST_SECONDS = 10.0
CONNECT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 30.0
MAX_RETRY_AFTER_SECONDS = 30.0
GATEWAY_TIMEOUT = 504
# ``Pace`` decides how many requests are in flight; this only bounds a mistake.
MOST_CONNECTIONS = 1000
JSON = "application/json"
MAX_ANSWER_BYTES = 1024 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024 * 1024
MOST_REFUSAL_BYTES = 1024 * 1024


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


class KubernetesTransport:
    """Sends requests to one API server; build it inside a running loop, and close it."""

    def __init__(self, access: Access, *, clock: Clock, rng: Rng, metrics: Recorder | None = None) -> None:
        self.access = access
        self.pace = Pace(clock)
        self.denials = Denials(clock)
        self._clock, self._rng, self._metrics = clock, rng, metrics
        self._ahead: float | None = None
        self._dated = ""
        self._url = ""
        self._pool = self._connections()

    async def __aenter__(self) -> KubernetesTransport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connections(self) -> http.Pool:
        """The connections to the address of now: an ``access`` may lead to another server than before."""
        if self._url == self.access.url:
            return self._pool
        if self._url:
            self._pool.close()
        self._url = self.access.url
        url = urlsplit(self._url)
        port = url.port or (443 if url.scheme == "https" else 80)
        name, proxy = self.access.server_name or "", self.access.proxy or ""
        peer = http.Peer(url.hostname or "", port, server_name=name, proxy=proxy)
        own = {"Host": url.netloc, "User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        self._fixed, self._base = http.lines_of(own), url.path.rstrip("/")
        self._pool = http.Pool(peer, MOST_CONNECTIONS)
        return self._pool

    async def close(self) -> None:
        """Drop all connections."""
        self._pool.close()
        await self._clock.sleep(0)  # connections learn of their end at the loop's next turn

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
                    cause = error.__cause__
                    if (
                        isinstance(cause, http.HttpError) and cause.in_vain
                    ) or error.status == GATEWAY_TIMEOUT:
                        self.pace.congested(sent)
                    raise

    @asynccontextmanager
    async def watch(self, request: ApiRequest, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on; a watch is over by itself after ``timeout`` at the latest.

        Raises:
            KubernetesError: as ``send``; while lines are read ``Unavailable``.
        """
        async with self.stream(request, timeout) as chunks:
            yield _lines(chunks, str(request))

    @asynccontextmanager
    async def stream(self, request: ApiRequest, timeout: float | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer as it comes, for at most ``timeout`` seconds (None: until the server ends it).

        Raises:
            KubernetesError: as ``send``; while it is read ``Unavailable``.
        """
        try:
            login = await self.access.credentials.login()
            pool = self._connections()
            head, tls = self._head(request, login), self._tls(login)
            async with pool.stream(head, timeout=timeout, connect=CONNECT_SECONDS, tls=tls) as answer:
                self._learn_time(answer.headers)
                if not 200 <= answer.status < 300:
                    body = await _start_of(answer)
                    raise self._refusal(request, answer.status, answer.headers, body)
                yield answer
        except Unauthorized:
            self.access.credentials.refused()
            raise
        except http.NeverLeft as error:
            raise self._cannot_connect(error) from error
        except http.HttpError as error:
            raise Unavailable(f"{request}: {error.reason}") from error

    async def _once(self, request: ApiRequest, login: RequestIdentity, timeout: float) -> bytes:
        # The connection has the shorter limit: when the whole one is over, the request has left.
        server_side = f"timeout={max(1, int(timeout * 1000))}ms"
        code = "none"
        pool = self._connections()
        try:
            answer = await pool.send(
                self._head(request, login, server_side),
                request.body,
                lambda _status, _headers: MAX_ANSWER_BYTES,
                timeout=timeout,
                connect=min(timeout / 2, CONNECT_SECONDS),
                repeat=not request.write,
                tls=self._tls(login),
            )
            code = _code(answer.status)
        except http.NeverLeft as error:
            raise self._cannot_connect(error) from error
        except http.NotHttp as error:
            raise UnexpectedAnswer(f"{request}: the answer is not HTTP: {error.reason}") from error
        except http.TooLong as error:
            raise UnexpectedAnswer(f"{request}: found more than {MAX_ANSWER_BYTES} bytes") from error
        except http.Lost as error:
            kind = UnknownOutcome if request.write else Unavailable
            raise kind(f"{request}: no answer: {error.reason}") from error
        finally:
            self._count(request, code)
        return self._body(request, answer)

    def _body(self, request: ApiRequest, answer: http.Answer) -> bytes:
        """The body of a success.

        Raises:
            KubernetesError: it is none.
        """
        self._learn_time(answer.headers)
        if not 200 <= answer.status < 300:
            raise self._refusal(request, answer.status, answer.headers, answer.body)
        found = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != JSON:
            raise UnexpectedAnswer(f"{request}: found {found or 'no content type'}, expected {JSON}")
        return answer.body

    def _count(self, request: ApiRequest, code: str) -> None:
        if self._metrics is not None:
            self._metrics.count(
                "farmd_kubernetes_requests_total",
                verb=request.method.lower(),
                resource=request.resource,
                code=code,
            )

    def _head(self, request: ApiRequest, login: RequestIdentity, more: str = "") -> bytes:
        """The head of a request; ``more`` goes into its query."""
        typed = {"Content-Type": request.content_type} if request.body else {}
        query = "&".join(filter(None, (_query(tuple(request.params)), more)))
        target = f"{self._base}{quote(request.path, safe='/:~.-_')}" + (f"?{query}" if query else "")
        headers = {
            **login.headers,
            "Accept": request.accept,
            **typed,
            **({"Impersonate-User": request.user} if request.user else {}),
        }
        return http.head(request.method, target, self._fixed, headers, len(request.body))

    def _tls(self, login: RequestIdentity) -> ssl.SSLContext | None:
        return login.tls if isinstance(login.tls, ssl.SSLContext) else None

    def _refusal(
        self, request: ApiRequest, status: int, headers: Mapping[str, str], body: bytes
    ) -> KubernetesError:
        error = error_of(status, body, str(request), write=request.write)
        if status == 403:
            self.denials.note(error)
        error.fields["retry_after"] = headers.get("retry-after", "")
        return error

    def _learn_time(self, headers: Mapping[str, str]) -> None:
        """Set the server's clock by the first answer of each of its seconds."""
        dated, self._dated = self._dated, headers.get("date", "")
        if self._dated != dated and (stamp := email.utils.parsedate_tz(self._dated)) is not None:
            self._ahead = email.utils.mktime_tz(stamp) - self._clock.mono()

    def _cannot_connect(self, error: http.NeverLeft) -> Unavailable:
        proxy = urlsplit(self.access.proxy or "")
        place = proxy.netloc.rpartition("@")[2]
        by = f" by the proxy {proxy.scheme}://{place}" if place else ""
        return Unavailable(f"{self.access.url}: cannot connect{by}: {error.reason}")


def retry_after(error: KubernetesError) -> float | None:
    """Seconds for which the server asked to be left alone; None: it did not."""
    told = str(error.fields.get("retry_after", ""))
    return min(float(told), MAX_RETRY_AFTER_SECONDS) if told.isdecimal() else None


@functools.lru_cache(64)
def _query(params: tuple[tuple[str, str], ...]) -> str:
    return urlencode(params)


def _code(status: int) -> str:
    """The status as a metric's label, whose values are closed."""
    return "200" if 200 <= status < 300 else str(status) if str(status) in STATUSES else "other"


async def _lines(chunks: AsyncIterator[bytes], where: str) -> AsyncIterator[bytes]:
    """Each line, of up to ``MOST_LINE_BYTES``."""
    rest = bytearray()
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first
        for other in others:
            if rest:
                yield bytes(rest)
            rest = bytearray(other)
        if len(rest) > MOST_LINE_BYTES:
            raise UnexpectedAnswer(f"{where}: found a line of more than {MOST_LINE_BYTES} bytes")


async def _start_of(chunks: AsyncIterator[bytes]) -> bytes:
    """The text of a refusal, at most ``MOST_REFUSAL_BYTES`` of it."""
    told = bytearray()
    async for chunk in chunks:
        told += chunk
        if len(told) > MOST_REFUSAL_BYTES:
            break
    return bytes(told)
