"""A TCP proxy of the tests' own, in front of a server: faults at an exact place, not at a time.

It reads requests whole (HTTP/1.1, keep-alive), so that a test can hold the k-th transaction before
the server sees it, or hold its answer after the server acted (the outcome is then unknown to the
client). It can also delay, refuse, cut and freeze all connections, and answer with an error itself. Answers
are passed on as bytes.

    async with Proxy(consul.address) as proxy:
        hold = proxy.hold_transaction(3)
        ...                       # point the client at proxy.address
        await hold.reached.wait()
        hold.release()            # or hold.drop(): the connection is cut
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import weakref
from types import TracebackType

from tests.proxy_holds import Hold, Match, Seen, reset, transactions

__all__ = ["Hold", "Proxy", "Seen", "transactions"]

HEAD_LIMIT = 1 << 20
# So many turns of the loop after it was accepted, a connection has been refused.
TURNS = 10


class Proxy:
    """Async context manager; ``address`` is what a client connects to.

    Attributes:
        latency: seconds added before each request is passed on.
        each_request: each request goes to the server on a connection of its own.
        requests: every request that a client sent, oldest first.
        refused: connections that ``refuse`` cut as they came.
        upward: connections to the server, those that are being closed among them.

    Args:
        upstream: ``host:port`` of the server, or ``unix:///path``.
        source: address that the server sees as its client; Consul counts connections by it.
        tls: how the proxy itself logs in to a server that wants TLS; its clients speak plain HTTP.
    """

    def __init__(
        self, upstream: str, *, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.source, self.tls = source, tls
        self.refused = 0
        self.upstream = upstream
        self.address = ""
        self.latency = 0.0
        self.each_request = False
        self.requests: list[Seen] = []
        self._holds: list[Hold] = []
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._failing: tuple[Match, int, bytes] | None = None
        self._repeating: Match | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.upward: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    def hold_transaction(self, k: int = 1, *, answer: bool = False) -> Hold:
        """Hold the k-th ``PUT /v1/txn`` from now (1 is the next), or its answer."""
        return self.hold(transactions, k, answer=answer)

    def hold(self, match: Match, k: int = 1, *, answer: bool = False) -> Hold:
        """Hold the k-th request from now that ``match`` accepts, or its answer."""
        hold = Hold(match, k, answer)
        self._holds.append(hold)
        return hold

    def reset(self) -> None:
        """Cut all connections with RST; new ones are accepted."""
        for connection in list(self._connections):
            connection.reset()

    def refuse(self) -> None:
        """Cut all connections, and every new one at once, until ``accept``."""
        self._refusing = True
        self.reset()

    def accept(self) -> None:
        """End of ``refuse``."""
        self._refusing = False

    def fail(self, status: int, match: Match = lambda _: True, body: str = "") -> None:
        """Answer matching requests with a status of the proxy's own, until ``recover``."""
        self._failing = (match, status, body.encode())

    def repeat(self, match: Match) -> None:
        """Send matching requests twice, and answer with what the second one got, until ``recover``."""
        self._repeating = match

    def recover(self) -> None:
        """End of ``fail`` and of ``repeat``."""
        self._failing = self._repeating = None

    def freeze(self) -> None:
        """Pass nothing either way; connections stay open, as with a dead network."""
        self._open.clear()

    def thaw(self) -> None:
        """End of ``freeze``; what waited is delivered."""
        self._open.set()

    def transactions(self) -> int:
        """How many transactions clients have sent."""
        return sum(transactions(seen) for seen in self.requests)

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=HEAD_LIMIT)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        # Python 3.11 leaves a connection open that a server accepts in the turn in which it closes.
        # So the server first accepts no more; what it has accepted is refused; then it closes.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        self.refuse()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The end of TLS takes both sides, and the loop may end before the server has answered.
        for transport in self.upward:
            transport.abort()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            self.refused += 1
            reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # only __aexit__ cancels
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)

    def _hold_for(self, seen: Seen) -> Hold | None:
        """Every hold counts the request; the first whose turn it is gets it."""
        taken = [hold for hold in self._holds if hold.takes(seen)]
        return taken[0] if taken else None


class _Connection:
    """One client connection and its own connection to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._up_writer: asyncio.StreamWriter | None = None
        self._gate = asyncio.Event()
        self._gate.set()
        self._answered = asyncio.Event()
        self._again: asyncio.Future[asyncio.StreamReader | None] | None = None

    async def run(self) -> None:
        """Until either side closes."""
        opening = asyncio.create_task(_opened(self._proxy))
        try:
            up_reader, self._up_writer = await asyncio.shield(opening)
        except OSError:
            reset(self._writer)  # nobody is there: the client must learn it as from the server's own machine
            return
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                (await opening)[1].close()
            raise
        both = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers(up_reader))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            # Before anything is awaited: the proxy may end meanwhile, and cancel this.
            for writer in (self._writer, self._up_writer):
                writer.close()
            await asyncio.gather(*both, return_exceptions=True)

    def reset(self) -> None:
        """Cut both sides with RST."""
        for writer in (self._writer, self._up_writer):
            if writer is not None:
                reset(writer)

    async def _requests(self) -> None:
        seen: Seen | None = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readuntil(b"\r\n\r\n")
                body = await self._body(head)
                method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                seen = Seen(method, target, body)
                if not await self._pass(seen, head + body):
                    self.reset()
                    return
        if seen is not None and seen.method != "GET":
            # The client died after its write was sent: the server gets it whole, as on a real network.
            await self._answered.wait()

    async def _pass(self, seen: Seen, data: bytes) -> bool:
        """Deliver one request; False when the connection is to be cut."""
        assert self._up_writer is not None
        self._proxy.requests.append(seen)
        if self._proxy._failing is not None and self._proxy._failing[0](seen):
            _, status, body = self._proxy._failing
            head = f"HTTP/1.1 {status} Refused by the test\r\nContent-Length: {len(body)}\r\n\r\n"
            self._writer.write(head.encode() + body)
            return True
        if self._proxy._repeating is not None and self._proxy._repeating(seen):
            await _sent_before(self._proxy, data)
        hold = self._proxy._hold_for(seen)
        if self._proxy.latency:
            await asyncio.sleep(self._proxy.latency)
        if hold is not None and not hold.answer and not await self._held(hold, seen):
            return False
        if self._proxy.each_request and (hold is None or hold.answer):
            await self._anew(self._left())
        await self._proxy._open.wait()
        self._answered.clear()
        if hold is not None and hold.answer:
            self._gate.clear()
        self._up_writer.write(data)
        await self._up_writer.drain()
        if hold is not None and hold.answer:
            # Held only once the server has begun to answer: it has acted by then.
            await self._answered.wait()
            if await hold.wait(seen, self._writer):
                return False
            self._gate.set()
        if hold is not None:
            await self._answered.wait()
            hold.finished.set()
        return True

    async def _held(self, hold: Hold, seen: Seen) -> bool:
        """Hold a request; False when the connection is to be cut.

        It goes to the server on a new connection: servers end one on which no request comes for long.
        """
        again = self._left()
        if await hold.wait(seen, self._writer):
            return False
        try:
            await self._anew(again)
        except OSError:
            hold.finished.set()
            raise
        return True

    def _left(self) -> asyncio.Future[asyncio.StreamReader | None]:
        """Close the connection to the server; its answers go on with what ``_anew`` puts into the result."""
        assert self._up_writer is not None
        self._again = again = asyncio.get_running_loop().create_future()
        self._up_writer.close()
        return again

    async def _anew(self, again: asyncio.Future[asyncio.StreamReader | None]) -> None:
        """Go on with a new connection to the server."""
        try:
            reader, self._up_writer = await _opened(self._proxy)
        except OSError:
            again.set_result(None)
            raise
        again.set_result(reader)

    async def _body(self, head: bytes) -> bytes:
        length, chunked = 0, False
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
            chunked = chunked or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower())
        if not chunked:
            return await self._reader.readexactly(length)
        parts = []
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            parts += [line, await self._reader.readexactly(size + 2)]
            if size == 0:
                return b"".join(parts)

    async def _answers(self, up_reader: asyncio.StreamReader | None) -> None:
        try:
            while up_reader is not None:
                with contextlib.suppress(OSError):
                    await self._answers_of(up_reader)
                again, self._again = self._again, None
                up_reader = None if again is None else await again
        finally:
            self._answered.set()
        await self._gate.wait()

    async def _answers_of(self, up_reader: asyncio.StreamReader) -> None:
        while data := await up_reader.read(1 << 16):
            self._answered.set()
            await self._gate.wait()
            await self._proxy._open.wait()
            self._writer.write(data)
            await self._writer.drain()


async def _sent_before(proxy: Proxy, data: bytes) -> None:
    """Send a request on a connection of its own, and wait until the server begins to answer: it has acted."""
    reader, writer = await _opened(proxy)
    try:
        writer.write(data)
        await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def _opened(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    upstream = proxy.upstream
    if upstream.startswith("unix://"):
        return await asyncio.open_unix_connection(upstream.removeprefix("unix://"))
    host, _, port = upstream.rpartition(":")
    opened = await asyncio.open_connection(host, int(port), local_addr=(proxy.source, 0), ssl=proxy.tls)
    proxy.upward.add(opened[1].transport)
    return opened
