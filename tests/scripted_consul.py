"""A real HTTP server whose answers a test writes itself, for what no Consul will do on demand.

    async with Scripted(answer) as consul:
        ...                          # point a client at consul.address
        consul.seen[0].path

``answer`` gets each request and returns the response, or None to hang up without a status. By default
it answers like Consul's KV: ``true``.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from aiohttp import web

KV_HEADERS = {"X-Consul-Index": "7", "X-Consul-Knownleader": "true", "X-Consul-Lastcontact": "0"}


@dataclass(frozen=True)
class Seen:
    """One request; ``connection`` tells connections apart, ``target`` is path and query as sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    certificate: Mapping[str, object] | None


Answer = Callable[[Seen], Awaitable[web.StreamResponse | None]]


def json_answer(body: str | bytes, status: int = 200, **headers: str) -> web.Response:
    """An answer as Consul's KV endpoints give it."""
    raw = body.encode() if isinstance(body, str) else body
    return web.Response(
        status=status, body=raw, headers={"Content-Type": "application/json", **KV_HEADERS, **headers}
    )


def text_answer(body: str, status: int, kind: str = "text/plain") -> web.Response:
    """An answer as Consul gives it for an error."""
    return web.Response(status=status, text=body, content_type=kind, charset="utf-8")


async def yes(_seen: Seen) -> web.StreamResponse:
    """``true``."""
    return json_answer("true")


class Scripted:
    """The server; ``seen`` lists all requests in order, ``cut`` counts requests whose client went away."""

    def __init__(
        self, answer: Answer = yes, *, tls: ssl.SSLContext | None = None, unix: Path | None = None
    ) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self._tls = tls
        self._unix = unix
        self._connections: dict[int, object] = {}
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True))
        self.address = ""

    @property
    def connections(self) -> int:
        """How many different connections brought requests."""
        return len({seen.connection for seen in self.seen})

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def __aenter__(self) -> Scripted:
        await self._runner.setup()
        if self._unix is not None:
            await web.UnixSite(self._runner, str(self._unix)).start()
            self.address = f"unix://{self._unix}"
            return self
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        self.address = f"{'https' if self._tls else 'http'}://localhost:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.shutdown()
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._connections[id(transport)] = transport  # kept alive, so that ids are not used again
        self.seen.append(
            Seen(
                request.method,
                request.raw_path,
                request.headers,
                await request.read(),
                id(transport),
                transport.get_extra_info("peercert"),
            )
        )
        response = await self.answer(self.seen[-1])
        if response is None:
            transport.abort()
            return web.Response()
        return response
