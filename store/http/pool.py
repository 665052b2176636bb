"""Kept connections to one peer, and the head of a request."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from store.http.connection import Answer, Connection, Room, Stream
from store.http.errors import Lost, NeverLeft, reason

KEEP_ALIVE_SECONDS = 55.0
NEXT_ADDRESS_SECONDS = 0.25
_FORBIDDEN = re.compile(r"[\r\n\0]")
_MOST_HEAD_BYTES = 64 * 1024


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
    proxy: str = ""
    """The address of a proxy, which may have a user and a password; empty: none."""


class Pool:
    """Connections to one peer, ``limit`` at once."""

    def __init__(self, peer: Peer, limit: int) -> None:
        self._peer = peer
        self._places = asyncio.Semaphore(limit)
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()

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
                            if fresh or not (repeat and error.hung_up):
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
        sent = False
        try:
            async with asyncio.timeout(timeout):
                async with asyncio.timeout(connect):
                    connection = await self._connected(tls or self._peer.tls())
                sent = True
                try:
                    yield await connection.stream(head)
                finally:
                    self._all.discard(connection)
                    connection.abort()
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
        try:
            made = await self._opened(tls)
        except (OSError, ssl.CertificateError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NeverLeft(reason(error)) from error
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
        over = ssl.create_default_context() if proxy.scheme == "https" else None
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
            status = await tunnel.status
            if not 200 <= status < 300:
                raise NeverLeft(f"the proxy answers {status}")
        except BaseException:
            transport.abort()
            raise
        made = Connection(tls)
        transport.set_protocol(made)
        if tls is None:
            made.connection_made(transport)
            return made
        secure = await loop.start_tls(transport, made, tls, server_hostname=name)
        assert secure is not None
        made.connection_made(secure)
        return made

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
        """Drop all connections; requests under way are lost."""
        for connection in self._all:
            connection.fail(Lost("the connection was closed"))
        self._all.clear()
        self._idle.clear()


class _Tunnel(asyncio.Protocol):
    """The answer of a proxy to CONNECT; what comes after its head is the peer's."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.status.done() or (b"\r\n\r\n" not in self._head and len(self._head) < _MOST_HEAD_BYTES):
            return
        word = self._head.partition(b"\r\n")[0].split(b" ")[1:2]
        if self._head.startswith(b"HTTP/1.") and word and word[0].isdigit():
            self.status.set_result(int(word[0]))
        else:
            self.status.set_exception(NeverLeft("the proxy does not speak HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.status.done():
            why = reason(exc) if exc is not None else "the proxy ended the connection"
            self.status.set_exception(NeverLeft(why))


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
    if any(_FORBIDDEN.search(line, 0, len(line) - 2) for line in lines):
        raise ValueError("found a line break in a header, expected one line")
    return b"".join((*(line.encode("latin-1") for line in lines), fixed, b"\r\n"))


def lines_of(headers: Mapping[str, str]) -> bytes:
    """Headers as ``head`` takes those that all requests have."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
