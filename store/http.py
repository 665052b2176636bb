"""HTTP/1.1 requests over kept connections: an asyncio protocol around llhttp's parser (``httptools``).

What must never break: no request that may change something is sent twice, and a request is reported as unsent
only if no byte of it can have left. Redirects are handed back, and an answer has a bound.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import httptools

KEEP_ALIVE_SECONDS = 55.0
MOST_HEADER_BYTES = 256 * 1024
# After this time without the peer's goodbye a connection under TLS is dropped (python/cpython#118950).
GOODBYE_SECONDS = 2.0
_NO_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
"""What OpenSSL says where a plain HTTP server answers, by version."""
_FORBIDDEN = re.compile(r"[\r\n\0]")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_BODYLESS = {204, 304}

Room = Callable[[int, Mapping[str, str]], int]
"""How many bytes the body of an answer may have, by its status and headers; below 0: it is dropped as it
comes."""


class HttpError(Exception):
    """No answer; ``reason`` says why, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NeverLeft(HttpError):
    """The request never left."""


class Lost(HttpError):
    """The request left, and no whole answer came; ``hung_up``: the peer ended the connection without any."""

    def __init__(self, reason: str, *, hung_up: bool = False) -> None:
        super().__init__(reason)
        self.hung_up = hung_up


class NotHttp(HttpError):
    """What came is no answer of HTTP."""


class TooLong(HttpError):
    """The answer is longer than it may be; ``status`` is its status."""

    def __init__(self, status: int) -> None:
        super().__init__("the answer is too long")
        self.status = status


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom a pool asks: ``host`` and ``port``, or the socket ``unix_path``. ``tls`` is asked for each new
    connection; None: no TLS. A connection whose context is not the present one is not used again.
    """

    host: str
    port: int
    unix_path: str = ""
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.idle_since = 0.0
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._room: Room = lambda _status, _headers: 0
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._left = 0
        self._until_close = False

    # -- what a pool asks ------------------------------------------------------------------------
    def send(self, data: bytes, room: Room) -> asyncio.Future[Answer]:
        """Write a request; its answer."""
        assert self._transport is not None
        self._reset()
        self._room = room
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    @property
    def reusable(self) -> bool:
        """Whether another request may use it."""
        sent = self._transport is not None and self._transport.get_write_buffer_size() == 0
        return sent and not self.closed and self._answer is None

    def close(self) -> None:
        """End it; under TLS the peer has a moment to say goodbye."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()
            if self.tls is not None:
                asyncio.get_running_loop().call_later(GOODBYE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End it at once."""
        self.closed, self._answer = True, None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nobody asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(NotHttp("it wants to speak another protocol"))
        except httptools.HttpParserError as error:
            told = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fail(told if isinstance(told, HttpError) else NotHttp(reason(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._answer is None:
            return
        if self._until_close and exc is None:
            self._complete()
            return
        why = reason(exc) if exc is not None else "it ended the connection"
        self._fail(Lost(why, hung_up=not self._status and not isinstance(exc, ssl.SSLError)))

    # -- the parser ------------------------------------------------------------------------------
    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEADER_BYTES:
            raise NotHttp(f"found headers of more than {MOST_HEADER_BYTES} bytes")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        headers = self._headers
        self._left = self._room(self._status, headers)
        chunked, length = "transfer-encoding" in headers, headers.get("content-length")
        self._until_close = not (chunked or length) and self._status not in _BODYLESS
        if length is not None and 0 <= self._left < int(length):
            raise TooLong(self._status)

    def on_body(self, body: bytes) -> None:
        if self._left < 0:
            return
        self._left -= len(body)
        if self._left < 0:
            raise TooLong(self._status)
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status < 200:  # an interim answer, after which the real one comes
            self._reset()
            return
        if not self._parser.should_keep_alive():
            self.closed = True
        self._complete()

    # -- the end of a request --------------------------------------------------------------------
    def _complete(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            answer.set_result(Answer(self._status, self._headers, body))
        self._body = []
        if self.closed:
            self.close()

    def _fail(self, error: Exception) -> None:
        answer = self._answer
        self.abort()
        if answer is not None and not answer.done():
            answer.set_exception(error)


class Pool:
    """Connections to one peer, ``limit`` at once."""

    def __init__(self, peer: Peer, limit: int) -> None:
        self._peer = peer
        self._places = asyncio.Semaphore(limit)
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()

    async def send(
        self, head: bytes, body: bytes, room: Room, *, timeout: float, connect: float, repeat: bool
    ) -> Answer:
        """Send a request and receive its answer. ``head`` ends with an empty line. ``repeat``: it changes
        nothing, so it is sent again if a kept connection turns out to have ended.

        Args:
            timeout: seconds for all of it.
            connect: seconds for a place and a connection, at most.

        Raises:
            NeverLeft, Lost, NotHttp, TooLong; what ``peer.tls`` raises.
        """
        until = asyncio.get_running_loop().time() + connect
        sent = False
        try:
            async with asyncio.timeout(timeout):
                await self._place(until)
                try:
                    while True:
                        connection, fresh = await self._connection(until)
                        sent = True
                        try:
                            return await self._exchange(connection, head + body, room)
                        except Lost as error:
                            if fresh or not (repeat and error.hung_up):
                                raise
                        sent = False
                finally:
                    self._places.release()
        except TimeoutError as error:
            raise (Lost if sent else NeverLeft)(reason(error)) from error

    async def _place(self, until: float) -> None:
        if self._places.locked():
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        else:
            await self._places.acquire()

    async def _exchange(self, connection: Connection, data: bytes, room: Room) -> Answer:
        try:
            answer = await connection.send(data, room)
        except BaseException:
            connection.abort()
            self._all.discard(connection)
            raise
        self._keep(connection)
        return answer

    async def _connection(self, until: float) -> tuple[Connection, bool]:
        """A connection, and whether it is new."""
        tls = self._peer.tls()
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            young = now - connection.idle_since < KEEP_ALIVE_SECONDS
            if young and connection.reusable and connection.tls is tls:
                return connection, False
            self._drop(connection)
        async with asyncio.timeout_at(until):
            return await self._connected(tls), True

    async def _connected(self, tls: ssl.SSLContext | None) -> Connection:
        loop, peer = asyncio.get_running_loop(), self._peer
        name = (peer.server_name or peer.host) if tls is not None else None
        try:
            if peer.unix_path:
                made = await loop.create_unix_connection(
                    lambda: Connection(tls), peer.unix_path, ssl=tls, server_hostname=name
                )
            else:
                made = await loop.create_connection(
                    lambda: Connection(tls),
                    peer.host,
                    peer.port,
                    ssl=tls,
                    server_hostname=name,
                    happy_eyeballs_delay=0.25,
                )
        except (OSError, ssl.CertificateError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NeverLeft(reason(error)) from error
        self._all.add(made[1])
        return made[1]

    def _keep(self, connection: Connection) -> None:
        if not connection.reusable:
            self._drop(connection)
            return
        now = connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        while self._idle and (self._idle[0].closed or now - self._idle[0].idle_since > KEEP_ALIVE_SECONDS):
            self._drop(self._idle.popleft())

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        if not connection.closed:
            connection.close()

    def close(self) -> None:
        """Drop all connections."""
        for connection in self._all:
            connection.abort()
        self._all.clear()
        self._idle.clear()


def head(method: str, target: str, fixed: bytes, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a request; ``fixed`` are lines of headers that all requests have.

    Raises:
        ValueError: a header or the target would begin another line.
    """
    lines = [f"{method} {target} HTTP/1.1\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    if length or method in ("PUT", "POST", "PATCH"):
        lines.append(f"Content-Length: {length}\r\n")
    if any(_FORBIDDEN.search(line, 0, len(line) - 2) for line in lines):
        raise ValueError("found a line break in a header, expected one line")
    return b"".join((*(line.encode("latin-1") for line in lines), fixed, b"\r\n"))


def lines_of(headers: Mapping[str, str]) -> bytes:
    """Headers as ``head`` takes those that all requests have."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


def reason(error: BaseException) -> str:
    """Why no answer came, in the system's words if there are any; aiohttp wraps them in its own."""
    refused = getattr(error, "certificate_error", error)
    if isinstance(refused, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {refused.verify_message}"
    if isinstance(refused, ssl.CertificateError):
        return f"its certificate is refused: {refused}"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS" if cause.reason in _NO_TLS else f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, socket.gaierror) and cause.strerror:
        return cause.strerror
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    if isinstance(cause, OSError) and (found := _ERRNO.search(str(cause))):  # of several addresses
        return os.strerror(int(found[1]))
    return " ".join(str(error).split())[:160] or type(error).__name__
