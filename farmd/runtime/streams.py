"""Byte streams over one WebSocket, in both directions, each with a window of its own (R42).

A sender stops when the receiver has not taken ``WINDOW`` bytes of a stream. So a slow reader of one stream
costs both sides a bounded amount of memory, and both sides always read the socket: signals, answers to pings
and the end of the connection are never stuck behind data.

A binary message is the number of a stream (4 bytes) and data; without data it ends the stream. A text message
is a JSON object.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import ClientWebSocketResponse, WSMsgType, web

from farmd.runtime.tasks import until_one_fails

WINDOW = 1 << 20
PIECE = 1 << 16
LARGEST = PIECE + 1024
"""The ``max_msg_size`` of both sides."""
PING_SECONDS = 15.0
STDIN, STDOUT, STDERR = 0, 1, 2
_NUMBER = 4
MOST_NUMBER = (1 << 8 * _NUMBER) - 1


class Broken(Exception):
    """The other side does not keep to this protocol."""


class Streams:
    """The streams of one WebSocket."""

    def __init__(self, socket: ClientWebSocketResponse | web.WebSocketResponse) -> None:
        self._socket = socket
        self._sent = defaultdict[int, int](int)
        """What the receiver has not taken yet, by stream."""
        self._received = defaultdict[int, int](int)
        self._taken = defaultdict[int, int](int)
        """What this side took and did not say yet, by stream."""
        self._room = asyncio.Condition()
        self._open = {STDIN, STDOUT, STDERR}
        self._newest = STDERR
        self._ended = set[int]()
        """The open streams of which nothing more may come."""

    async def send(self, stream: int, data: bytes) -> None:
        """Send data once there is room for it.

        Raises:
            ConnectionError: the connection is gone.
        """
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            async with self._room:
                await self._room.wait_for(lambda: self._sent[stream] < WINDOW)
                self._sent[stream] += len(piece)
            await self._socket.send_bytes(stream.to_bytes(_NUMBER, "big") + piece)

    async def finish(self, stream: int) -> None:
        """End a stream."""
        await self._socket.send_bytes(stream.to_bytes(_NUMBER, "big"))

    async def tell(self, **words: Any) -> None:
        """Send something that is no data."""
        await self._socket.send_str(json.dumps(words))

    async def took(self, stream: int, size: int) -> None:
        """Note that data was used, so that more may come."""
        self._taken[stream] += size
        if self._taken[stream] >= WINDOW // 4:
            self._received[stream] -= self._taken[stream]
            taken, self._taken[stream] = self._taken[stream], 0
            await self.tell(took=[stream, taken])

    def open(self, stream: int) -> None:
        """Take what comes of a further stream. Each has a larger number than all before it, so that nobody
        has to remember those that were closed.

        Raises:
            Broken: it has no such number.
        """
        if not self._newest < stream <= MOST_NUMBER:
            raise Broken(f"found {stream} as the number of a new stream, expected one above {self._newest}")
        self._newest = stream
        self._open.add(stream)

    def close(self, stream: int) -> None:
        """Forget a stream; what still comes of it is dropped."""
        self._open.discard(stream)
        self._ended.discard(stream)
        for known in (self._sent, self._received, self._taken):
            known.pop(stream, None)

    async def messages(self) -> AsyncIterator[tuple[int, bytes] | dict[str, Any]]:
        """What comes, until the connection ends: data of streams, and what is no data.

        Raises:
            Broken: the other side sent more than it may, or something else than this.
        """
        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                found = self._data(message.data)
                if found[0] in self._open:
                    yield found
            elif message.type is WSMsgType.TEXT:
                words = _words(message.data)
                if "took" in words:
                    await self._gives_room(words["took"])
                else:
                    yield words
            elif message.type is WSMsgType.ERROR:
                raise Broken(str(message.data))

    def _data(self, message: bytes) -> tuple[int, bytes]:
        if len(message) < _NUMBER:
            raise Broken("found a message without the number of a stream")
        stream, data = int.from_bytes(message[:_NUMBER], "big"), message[_NUMBER:]
        if stream > self._newest:
            raise Broken(f"found data of stream {stream}, which nobody opened")
        if stream not in self._open:
            return stream, b""  # it was closed meanwhile
        if stream in self._ended:
            raise Broken(f"found more of stream {stream} after its end")
        if not data:
            self._ended.add(stream)
        self._received[stream] += len(data)
        if self._received[stream] > WINDOW + PIECE:
            raise Broken(f"found more than {WINDOW} bytes that were not asked for")
        return stream, data

    async def _gives_room(self, told: Any) -> None:
        if not (isinstance(told, list) and [type(each) for each in told] == [int, int]):
            raise Broken("took: found something else than a stream and a number")
        stream, size = told
        if stream not in self._sent:
            return  # it was closed
        if not 0 <= size <= self._sent[stream]:
            raise Broken("took: found more than was sent")
        async with self._room:
            self._sent[stream] -= size
            self._room.notify_all()


def _words(text: str) -> dict[str, Any]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken("found a text that is no JSON") from error
    if not isinstance(words, dict):
        raise Broken("found a text that is no JSON object")
    return words


async def relay(
    streams: Streams,
    stream: int,
    queue: asyncio.Queue[bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Pass on what a connection sends, and to it what ``queue`` gets of the stream, until both have ended."""

    async def out() -> None:
        while data := await reader.read(PIECE):
            await streams.send(stream, data)
        await streams.finish(stream)

    async def into() -> None:
        while data := await queue.get():
            writer.write(data)
            await writer.drain()
            await streams.took(stream, len(data))
        if writer.can_write_eof():
            writer.write_eof()

    try:
        await until_one_fails([out(), into()])
    finally:
        writer.close()
