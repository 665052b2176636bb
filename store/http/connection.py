"""One connection: an asyncio protocol around llhttp's parser."""

from __future__ import annotations

import asyncio
import functools
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import httptools

from store.http.errors import HttpError, Lost, NotHttp, TooLong, reason

MOST_HEAD_BYTES = 256 * 1024
# So much of a stream waits for its reader before the peer has to.
STREAM_BYTES = 1024 * 1024
# After this time without the peer's goodbye a connection under TLS is dropped (python/cpython#118950).
GOODBYE_SECONDS = 2.0
_BODYLESS = {204, 304}

Room = Callable[[int, Mapping[str, str]], int]
"""How many bytes the body of an answer may have, by its status and headers; below 0: it is dropped as it
comes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def drop(transport: asyncio.BaseTransport) -> None:
    """End a transport at once. Python 3.11.2 raises where TLS was closed twice before."""
    with suppress(AttributeError):
        cast("asyncio.Transport", transport).abort()


@functools.lru_cache(256)
def _name(name: bytes) -> str:
    """The name of a header in lower case."""
    return name.decode("latin-1").lower()


class Stream:
    """An answer whose body is read as it comes. While the caller does not read, the peer has to wait."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._end: Exception | None = None
        self._ended = False
        self._news = asyncio.Event()

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """The head of the answer came."""
        self.status, self.headers = status, headers

    def feed(self, body: bytes) -> None:
        """A part of the body came."""
        self._chunks.append(body)
        self._bytes += len(body)
        if self._bytes > STREAM_BYTES:
            self._connection.pause(True)
        self._news.set()

    def end(self, error: Exception | None) -> None:
        """Nothing more comes. What ended it first counts."""
        if not self._ended:
            self._ended, self._end = True, error
        self._news.set()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._ended:
                if self._end is not None:
                    raise self._end
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        chunk = self._chunks.popleft()
        self._bytes -= len(chunk)
        if not self._bytes:
            self._connection.pause(False)
        return chunk


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.idle_since = 0.0
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._begun: asyncio.Future[Stream] | None = None
        self._stream: Stream | None = None
        self._room: Room = lambda _status, _headers: 0
        self._beside = 0  # bytes since the request, or since the last part of a body
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._headed = False
        self._body: list[bytes] = []
        self._left = 0
        self._until_close = False

    # -- what a pool asks ------------------------------------------------------------------------
    def send(self, data: bytes, room: Room) -> asyncio.Future[Answer]:
        """Write a request; its answer."""
        assert self._transport is not None
        self._reset()
        self._beside = 0
        self._room = room
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    def stream(self, data: bytes) -> asyncio.Future[Stream]:
        """Write a request; its answer, once that begins. The connection serves nothing else afterwards."""
        assert self._transport is not None
        self._reset()
        self._beside = 0
        self._begun = asyncio.get_running_loop().create_future()
        self._stream = Stream(self)
        self._transport.write(data)
        return self._begun

    def pause(self, paused: bool) -> None:
        """Read nothing more for now, or go on."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    @property
    def asked(self) -> bool:
        """Whether an answer is due."""
        return self._answer is not None or self._stream is not None

    @property
    def whole(self) -> bool:
        """Whether it may be kept for another request."""
        if self._transport is None or self.closed or self.asked or self._transport.is_closing():
            return False
        return self._transport.get_write_buffer_size() == 0

    @property
    def reusable(self) -> bool:
        """Whether another request may use it now. Bytes, or the end of the connection, may have arrived that
        the loop has not delivered yet: the request would be lost, or would take those bytes for its answer.
        """
        return self.whole and not (self._poll is not None and self._poll.poll(0))

    def close(self) -> None:
        """Close the connection; under TLS the peer has a moment to close its side. A peer that answered
        before it read the whole request may never read the rest.
        """
        self.closed = True
        if self._transport is not None and self._transport.get_write_buffer_size():
            drop(self._transport)
        elif self._transport is not None:
            self._transport.close()
            if self.tls is not None:
                asyncio.get_running_loop().call_later(GOODBYE_SECONDS, drop, self._transport)

    def abort(self) -> None:
        """End it at once."""
        stream = self._stream
        self.closed, self._answer, self._stream, self._begun, self._body = True, None, None, None, []
        if stream is not None:
            stream.end(Lost("the connection was closed"))
        if self._transport is not None:
            drop(self._transport)

    @property
    def transport(self) -> asyncio.Transport:
        """What it writes to."""
        assert self._transport is not None
        return self._transport

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if found is not None:
            self._poll = select.poll()
            self._poll.register(found.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if not self.asked:
            self.close()
            return
        self._beside += len(data)  # the parser keeps a header or a trailer until its line ends
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(NotHttp("it wants to speak another protocol"))
        except httptools.HttpParserError as error:
            told = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self.fail(told if isinstance(told, HttpError) else NotHttp(reason(error)))
        else:
            if self.asked and self._beside > MOST_HEAD_BYTES:
                self.fail(NotHttp(f"found a head of more than {MOST_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.asked:
            return
        if self._until_close and exc is None:
            self._complete()
            return
        why = reason(exc) if exc is not None else "it ended the connection"
        self.fail(Lost(why, hung_up=not self._status and not isinstance(exc, ssl.SSLError)))

    # -- the parser ------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        """Refuse a message that follows the answer. No request asked for it, so no caller may read it as its
        answer.
        """
        if not self.asked:
            raise NotHttp("found an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:  # a trailer, which nobody needs
            return
        key, text = _name(name), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._headed = True
        headers = self._headers
        if self._stream is not None:
            self._stream.begin(self._status, headers)
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(self._stream)
        else:
            self._left = self._room(self._status, headers)
        chunked, length = "transfer-encoding" in headers, headers.get("content-length")
        self._until_close = not (chunked or length) and self._status not in _BODYLESS
        if self._stream is None and length is not None and 0 <= self._left < int(length):
            raise TooLong(self._status)

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        if self._stream is not None:
            self._stream.feed(body)
            return
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
        if self._stream is not None:
            self._stream.end(None)
            self._stream, self.closed = None, True
        if answer is not None and not answer.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            answer.set_result(Answer(self._status, self._headers, body))
        self._body = []
        if self.closed:
            self.close()

    def fail(self, error: Exception) -> None:
        """End it at once, with a request that is under way."""
        answer, begun = self._answer, self._begun
        if self._stream is not None:
            self._stream.end(error)
        self.abort()
        for waiting in (answer, begun):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
