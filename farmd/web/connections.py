"""Accepts the connections of a process's HTTP, and bounds what each of them may cost.

A peer needs no credential to connect, so all that it can hold has a limit here: files, time and memory. Most
of the process's files are kept for its own work: health checks, Consul, and the pods that it starts. At the
limit a new connection takes the place of the one that has waited longest without a request, so peers that
only hold connections keep out nobody. Requests that wait for a change or follow a log may take half of the
places, and one peer half of those, and keep theirs; where only other requests are left, the one that takes
longest gives up its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from store.ports import Recorder

log = structlog.get_logger()

MOST, LEAST = 2000, 16
PART_OF_FILES, PART_THAT_WAITS, PART_OF_A_PEER = 4, 2, 2
"""Connections may take a quarter of the files that the process may open, requests that wait half of these,
and those of one peer half of that: a proxy in front of many people is one peer."""
HANDSHAKE_SECONDS = 10.0
REQUEST_SECONDS = 10.0
"""From the first byte of a request to the end of its headers."""
UNREAD_SECONDS = 60.0
"""For how long a peer may leave an answer unread."""
LOOK_SECONDS = 1.0
BATCH = 32
PAUSE_SECONDS = 1.0
LOG_SECONDS = 60.0
CLOSED = "farmd_http_connections_closed_total"


class Factory(Protocol):
    """An aiohttp server: makes the protocol that speaks HTTP on one connection."""

    def __call__(self) -> asyncio.Protocol: ...


class _Connection(asyncio.Protocol):
    """One accepted connection: passes everything on to aiohttp's protocol, and notes when."""

    def __init__(self, speaks: asyncio.Protocol, book: Connections, now: float) -> None:
        self._speaks = speaks
        self._book = book
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.begun = now
        """When the first byte of the present request came; infinity while there is none."""
        self.unread = float("inf")
        """Since when the peer has not read what is written for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.begun = transport, float("inf")
        self._speaks.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.begun == float("inf") and self._book.waits(self):
            self.begun = self._book.now()
        self._speaks.data_received(data)

    def eof_received(self) -> bool | None:
        return self._speaks.eof_received()

    def pause_writing(self) -> None:
        self.unread = self._book.now()
        self._speaks.pause_writing()

    def resume_writing(self) -> None:
        self.unread = float("inf")
        self._speaks.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._book.lost(self)
        self._speaks.connection_lost(exc)

    def drop(self) -> None:
        """End it at once, whatever is still to be written."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Connections:
    """The open connections of one listening socket: ``serves`` makes what speaks HTTP on each."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext | None, recorder: Recorder) -> None:
        self._sock = sock
        self._tls = tls
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._serves: Factory | None = None
        self._open: dict[asyncio.Protocol, _Connection] = {}
        self._waiting: dict[_Connection, None] = {}
        """Those without a request that is handled, the one that has waited longest first."""
        self._handled: dict[_Connection, None] = {}
        """Those with a request that is handled, the oldest request first."""
        self._parked: dict[_Connection, str] = {}
        """Those whose requests wait, with their peers."""
        self._taken = Counter[str]()
        self._logged: dict[str, float] = {}
        self._look: asyncio.TimerHandle | None = None
        self.closed = False

    def now(self) -> float:
        """The time of the event loop."""
        return self._loop.time()

    def waits(self, connection: _Connection) -> bool:
        """Whether no request of a connection is handled now."""
        return connection in self._waiting

    # -- accepting ------------------------------------------------------------------------------
    def start(self, serves: Factory) -> None:
        """Accept connections from now on."""
        self._serves = serves
        self._sock.setblocking(False)
        self._sock.listen(128)
        self._loop.add_reader(self._sock, self._accept)
        self._look = self._loop.call_later(LOOK_SECONDS, self._judge)

    def stop(self) -> None:
        """Accept none any more. Connections that are open stay so."""
        self.closed = True
        self._loop.remove_reader(self._sock)
        if self._look is not None:
            self._look.cancel()

    def drop_all(self) -> None:
        """End all connections."""
        for connection in list(self._open.values()):
            connection.drop()

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no free file: look again when some may have been closed
                self._say("web.cannot_accept", error=str(error))
                self._make_room()
                self._loop.remove_reader(self._sock)
                self._loop.call_later(PAUSE_SECONDS, self._again)
                return
            if len(self._open) >= most() and not self._make_room():
                self._count("full")
                sock.close()
                continue
            self._begin(sock)

    def _again(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._sock, self._accept)

    def _begin(self, sock: socket.socket) -> None:
        assert self._serves is not None
        speaks = self._serves()
        connection = _Connection(speaks, self, self.now())
        self._open[speaks] = connection
        self._waiting[connection] = None
        connection.opening = self._loop.create_task(self._connect(connection, sock))

    async def _connect(self, connection: _Connection, sock: socket.socket) -> None:
        limits = (
            {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": HANDSHAKE_SECONDS}
            if self._tls is not None
            else {}
        )
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock, ssl=self._tls, **limits)
        except OSError:  # also of TLS: the peer left, took too long, or speaks no TLS
            self._count("handshake")
            self.lost(connection)
        except asyncio.CancelledError:
            self.lost(connection)
            raise
        finally:
            if connection.transport is None:
                sock.close()

    def _make_room(self) -> bool:
        """Drop the connection that has waited longest without a request, or else the one whose request takes
        longest and is not known to wait; whether there was one.
        """
        idle = next(iter(self._waiting), None)
        first = idle or next((each for each in self._handled if each not in self._parked), None)
        if first is None:
            return False
        self._end(first, "busy" if idle is None else "idle")
        self._say("web.connections_full", open=len(self._open) + 1, most=most())
        return True

    # -- what connections do --------------------------------------------------------------------
    @web.middleware
    async def arrived(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a request's headers are there; without its body the connection still makes room."""
        if (connection := self._open.get(request.protocol)) is not None:
            connection.begun = float("inf")
        return await handler(request)

    @web.middleware
    async def handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has a request for as long as it is handled."""
        connection = self._open.get(request.protocol)
        if connection is None:
            return await handler(request)
        self._waiting.pop(connection, None)
        self._handled[connection] = None
        connection.begun = float("inf")
        try:
            return await handler(request)
        finally:
            self._handled.pop(connection, None)
            if self._open.get(request.protocol) is connection:
                self._waiting[connection] = None

    @contextlib.contextmanager
    def parking(self, request: web.Request) -> Iterator[None]:
        """Let a request wait in one of the places for such requests.

        Raises:
            HTTPServiceUnavailable: all of them are taken, or all that one peer may have.
        """
        places = most() // PART_THAT_WAITS
        share, peer = places // PART_OF_A_PEER, _peer(request.transport)
        taken = self._taken[peer]
        if len(self._parked) >= places or taken >= share:
            whose = f"{taken} of this peer's" if taken >= share else f"{places}"
            text = f"{whose} requests are already waiting here, try again later"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"})
        connection = self._open.get(request.protocol)
        if connection is None:
            yield  # it is lost already
            return
        self._parked[connection] = peer
        self._taken[peer] += 1
        try:
            yield
        finally:
            self._unpark(connection)

    def _unpark(self, connection: _Connection) -> None:
        peer = self._parked.pop(connection, None)
        if peer is not None:
            self._taken[peer] -= 1
            if not self._taken[peer]:
                del self._taken[peer]

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that ended."""
        self._waiting.pop(connection, None)
        self._handled.pop(connection, None)
        self._unpark(connection)
        self._open.pop(connection._speaks, None)

    def _judge(self) -> None:
        """End the connections that take too long over a request, or leave their answers unread."""
        now = self.now()
        for connection in list(self._open.values()):
            if connection.transport is None:
                continue  # asyncio bounds the handshake
            if now - connection.begun > REQUEST_SECONDS:
                self._end(connection, "slow")
            elif now - connection.unread > UNREAD_SECONDS:
                self._end(connection, "unread")
            elif connection.transport.is_closing() and connection.unread == float("inf"):
                connection.unread = now  # closed, but for what the peer has yet to read
        self._look = self._loop.call_later(LOOK_SECONDS, self._judge)

    def _end(self, connection: _Connection, reason: str) -> None:
        self._count(reason)
        self.lost(connection)
        connection.drop()

    def _count(self, reason: str) -> None:
        self._recorder.count(CLOSED, reason=reason)

    def _say(self, event: str, **fields: object) -> None:
        """Log something that a peer can cause many times a second, once a minute."""
        if self.now() >= self._logged.get(event, float("-inf")) + LOG_SECONDS:
            self._logged[event] = self.now()
            log.error(event, files_limit=_files(), **fields)


CONNECTIONS = web.AppKey("connections", Connections)


def parked(request: web.Request) -> contextlib.AbstractContextManager[None]:
    """A place for a request that waits for a change, or follows something.

    Raises:
        HTTPServiceUnavailable: such requests hold as many places as they may.
    """
    connections = request.config_dict.get(CONNECTIONS)
    return contextlib.nullcontext() if connections is None else connections.parking(request)


def most() -> int:
    """How many connections may be open at once."""
    return max(LEAST, min(MOST, _files() // PART_OF_FILES))


def _peer(transport: asyncio.BaseTransport | None) -> str:
    """The peer of a connection: an IPv4 address, or the IPv6 network that one machine usually has."""
    name = transport.get_extra_info("peername") if transport is not None else None
    if not name:
        return ""
    address = ipaddress.ip_address(name[0].partition("%")[0])
    return str(ipaddress.ip_network((address, 64), strict=False) if address.version == 6 else address)


def _files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST * PART_OF_FILES if soft == resource.RLIM_INFINITY else soft
