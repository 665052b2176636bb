"""What the tests' proxy sees and holds: one request, and a test's grip on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seen:
    """One request as it passed: ``target`` is path and query as sent."""

    method: str
    target: str
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


Match = Callable[[Seen], bool]


def transactions(seen: Seen) -> bool:
    """Matches ``PUT /v1/txn``."""
    return seen.method == "PUT" and seen.path == "/v1/txn"


@dataclass(eq=False)
class Hold:
    """Stops the k-th matching request, or its answer, until the test decides.

    Attributes:
        reached: set when that request is held.
        finished: set when the server has answered it, or never will because it was dropped.
        seen: the request, once reached.
        count: how many matching requests came, up to that one.
    """

    match: Match
    k: int
    answer: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    seen: Seen | None = None
    count: int = 0
    _client: asyncio.StreamWriter | None = None
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _drop: bool = False

    def release(self) -> None:
        """Let it pass."""
        self._decided.set()

    def drop(self) -> None:
        """Cut the connection: the client never learns what happened."""
        self._drop = True
        self._decided.set()
        self.finished.set()

    def cut(self) -> None:
        """Cut the client off now; the server gets the request when it is released, far too late."""
        assert self._client is not None, "nothing is held yet"
        reset(self._client)

    def takes(self, seen: Seen) -> bool:
        """Count the request; whether it is the k-th."""
        if self.reached.is_set() or not self.match(seen):
            return False
        self.count += 1
        return self.count == self.k

    async def wait(self, seen: Seen, client: asyncio.StreamWriter) -> bool:
        """Hold; True if the connection is to be cut."""
        self.seen, self._client = seen, client
        self.reached.set()
        await self._decided.wait()
        return self._drop


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut a connection with RST instead of FIN: linger on, for zero seconds."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
