"""The embedded server without a network: a ``store.ports.Transport`` for tests in virtual time.

It takes no real time: a request is answered within one turn of the loop, and the wait of a blocking
query is measured by the server's clock.
"""

from __future__ import annotations

import asyncio

from store.embedded.server import EmbeddedServer
from store.errors import OutcomeUnknown, StoreUnavailable
from store.ports import Request, Response


class InProcessTransport:
    """Passes requests to a server in this process; several transports may share one server."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._closed = False

    async def send(self, request: Request, timeout: float) -> Response:
        """See ``store.ports.Transport``; ``timeout`` counts on the server's clock.

        Raises:
            StoreUnavailable: the transport is closed.
            OutcomeUnknown: no answer within ``timeout``.
        """
        if self._closed:
            raise StoreUnavailable("the transport is closed")
        await _turn()
        if all(name != "index" for name, _ in request.params):
            return await self._server.handle(request)
        answer = asyncio.ensure_future(self._server.handle(request))
        over = asyncio.ensure_future(self._server.timer.sleep(timeout))
        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise OutcomeUnknown(f"{request.method} {request.path}: no answer within {timeout:g} s")
            return answer.result()
        finally:
            answer.cancel()
            over.cancel()

    async def close(self) -> None:
        """Refuse all further requests; the server keeps running."""
        self._closed = True


async def _turn() -> None:
    """Let all other tasks run once, as they would during a network request."""
    loop = asyncio.get_running_loop()
    passed: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_pass, passed)
    await passed


def _pass(turn: asyncio.Future[None]) -> None:
    """End the turn, unless the caller was cancelled during it."""
    if not turn.done():
        turn.set_result(None)
