"""Kept connections to one peer, and the head of a request."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

from store.http.connection import Answer, Connection, Room, Stream, drop
from store.http.errors import Lost, NeverLeft, reason

KEEP_ALIVE_SECONDS = 55.0
NEXT_ADDRESS_SECONDS = 0.25
_CLOSED = "the connections were closed"
_MOST_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer of a pool: ``host`` and ``port``, or the socket ``unix_path``. ``tls`` is asked for each new
    connection; None: no TLS. A connection whose context is not the present one is not used again.
    """

    host: str
    port: int
    unix_path: str = ""
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    server_name: str = ""
    proxy: str = ""
    """The address of a proxy, which may have a user and a password; empty: none."""


class Pool:
    """Connections to one peer, ``limit`` at once."""

    def __init__(self, peer: Peer, limit: int) -> None:
        self._peer = peer
        self._places = asyncio.Semaphore(limit)
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._closed = False
        self._to_proxy: ssl.SSLContext | None = None

    async def send(
        self,
        head: bytes,
        body: bytes,
        room: Room,
        *,
        timeout: float,
        connect: float,
        repeat: bool,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send a request and receive its answer. ``head`` ends with an empty line. ``repeat``: it changes
        nothing, so it is sent again if a kept connection turns out to have ended. ``tls`` takes the place of
        the peer's.

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
                        connection, fresh = await self._connection(until, tls or self._peer.tls())
                        sent = True
                        try:
                            return await self._exchange(connection, head + body, room)
                        except Lost as error:
                            late = asyncio.get_running_loop().time() >= until
                            if fresh or late or not (repeat and error.hung_up):
                                raise
                        sent = False
                finally:
                    self._places.release()
        except TimeoutError as error:
            raise (Lost if sent else NeverLeft)(reason(error)) from error

    @asynccontextmanager
    async def stream(
        self, head: bytes, *, timeout: float | None, connect: float, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Stream]:
        """Send a request without a body; its answer as it comes, over a connection of its own.

        Args:
            timeout: seconds until the answer is over; None: any time.

        Raises:
            NeverLeft, Lost, NotHttp: also while the answer is read.
        """
        sent, whole = False, asyncio.timeout(timeout)
        try:
            async with whole:
                async with asyncio.timeout(connect):
                    connection = await self._connected(tls or self._peer.tls())
                sent = True
                try:
                    yield await connection.stream(head)
                finally:
                    self._all.discard(connection)
                    connection.abort()
        except TimeoutError as error:
            if sent and not whole.expired():
                raise  # of the reader
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

    async def _connection(self, until: float, tls: ssl.SSLContext | None) -> tuple[Connection, bool]:
        """A connection, and whether it is new."""
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
        if self._closed:
            raise NeverLeft(_CLOSED)
        try:
            made = await self._opened(tls)
        except (OSError, ssl.CertificateError, UnicodeError) as error:  # of a name that no host can have
            raise NeverLeft(reason(error)) from error
        if self._closed or made.closed:
            made.abort()
            raise NeverLeft(_CLOSED if self._closed else "it ended the connection")
        self._all.add(made)
        return made

    async def _opened(self, tls: ssl.SSLContext | None) -> Connection:
        loop, peer = asyncio.get_running_loop(), self._peer
        name = (peer.server_name or peer.host) if tls is not None else None
        if peer.unix_path:
            _, made = await loop.create_unix_connection(
                lambda: Connection(tls), peer.unix_path, ssl=tls, server_hostname=name
            )
            return made
        if peer.proxy:
            return await self._by_proxy(tls, name)
        _, made = await loop.create_connection(
            lambda: Connection(tls),
            peer.host,
            peer.port,
            ssl=tls,
            server_hostname=name,
            happy_eyeballs_delay=_delay(peer.host),
        )
        return made

    async def _by_proxy(self, tls: ssl.SSLContext | None, name: str | None) -> Connection:
        """A connection through the proxy, which sees no more than the peer's name (RFC 9110, CONNECT)."""
        loop, peer, proxy = asyncio.get_running_loop(), self._peer, urlsplit(self._peer.proxy)
        if proxy.scheme == "https" and self._to_proxy is None:
            self._to_proxy = ssl.create_default_context()
        over = self._to_proxy
        port = proxy.port or (443 if over else 80)
        transport, tunnel = await loop.create_connection(
            _Tunnel, proxy.hostname or "", port, ssl=over, happy_eyeballs_delay=_delay(proxy.hostname or "")
        )
        place = f"[{peer.host}]:{peer.port}" if ":" in peer.host else f"{peer.host}:{peer.port}"
        headers = {"Host": place}
        if proxy.username is not None:
            login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        try:
            transport.write(head("CONNECT", place, b"", headers, 0))
            if refusal := await tunnel.refusal:
                raise NeverLeft(refusal)
            made = Connection(tls)
            transport.set_protocol(made)
            if tls is None:
                made.connection_made(transport)
                transport.resume_reading()
                return made
            secure = await loop.start_tls(transport, made, tls, server_hostname=name)
        except BaseException:
            drop(transport)
            raise
        assert secure is not None
        made.connection_made(secure)
        return made

    def _keep(self, connection: Connection) -> None:
        if not connection.whole:
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
        """Drop all connections, and make no more; requests under way are lost."""
        self._closed = True
        for connection in self._all:
            connection.fail(Lost("the connection was closed"))
        self._all.clear()
        self._idle.clear()


class _Tunnel(asyncio.Protocol):
    """The answer of a proxy to CONNECT. Nothing comes behind it before the peer was asked."""

    def __init__(self) -> None:
        self.refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        told, end, behind = self._head.partition(b"\r\n\r\n")
        if not end and len(told) < _MOST_HEAD_BYTES:
            return
        word = told.partition(b"\r\n")[0].split(b" ")[1:2]
        if not (told.startswith(b"HTTP/1.") and word and word[0].isdigit()):
            self._ends("the proxy does not speak HTTP")
        elif not 200 <= int(word[0]) < 300:
            self._ends(f"the proxy answers {int(word[0])}")
        elif behind or not end:
            self._ends("the proxy's answer does not end")
        else:
            self._ends("")

    def _ends(self, refusal: str) -> None:
        if not self.refusal.done():
            self.refusal.set_result(refusal)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()  # what comes now is for the next protocol

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends(reason(exc) if exc is not None else "the proxy ended the connection")


def _delay(host: str) -> float | None:
    """After how many seconds the next address of a name is tried, too; None: an address has no other one.

    Before Python 3.13 a race that is cancelled leaves its socket to the collector.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return NEXT_ADDRESS_SECONDS
    return None


def head(method: str, target: str, fixed: bytes, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a request; ``fixed`` are lines of headers that all requests have.

    Raises:
        ValueError: a header or the target would begin another line.
    """
    lines = [f"{method} {target} HTTP/1.1\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    if length or method in ("PUT", "POST", "PATCH"):
        lines.append(f"Content-Length: {length}\r\n")
    text = "".join(lines)
    if text.count("\r") != len(lines) or text.count("\n") != len(lines) or "\0" in text:
        raise ValueError("found a line break in a header, expected one line")
    return b"".join((text.encode(), fixed, b"\r\n"))


def lines_of(headers: Mapping[str, str]) -> bytes:
    """Headers as ``head`` takes those that all requests have."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
