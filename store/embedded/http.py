"""The embedded server over HTTP, for farmctl, curl and the consul CLI.

It listens on loopback by default, because it has no TLS and, by default, no access control. A body
whose ``Content-Length`` is too large is refused without being read.
"""

from __future__ import annotations

from types import TracebackType
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from store.embedded import answers
from store.embedded.server import EmbeddedServer
from store.ports import Request

# Above Consul's own limit, which has its own error; this one bounds memory.
MAX_BODY_BYTES = 1024 * 1024
STOP_SECONDS = 0.1


class HttpFace:
    """One listening socket in front of a server; an async context manager.

    Args:
        server: answers the requests.
        host: address to listen on.
        port: 0 picks a free one.
    """

    def __init__(self, server: EmbeddedServer, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = server
        self._host = host
        self._port = port
        self._runner: web.ServerRunner | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen; ``address`` is ``host:port`` afterwards.

        Raises:
            OSError: the address cannot be listened on.
        """
        listener = web.Server(self._answer, handler_cancellation=True, access_log=None)
        # Blocking queries would delay a clean stop for minutes; clients reconnect by themselves.
        self._runner = web.ServerRunner(listener, shutdown_timeout=STOP_SECONDS)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        """Close the socket and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> HttpFace:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        try:
            response = await self._server.handle(await _translated(request))
        except web.HTTPRequestEntityTooLarge:
            response = answers.text("Request body too large", 413)
        return web.Response(status=response.status, headers=response.headers, body=response.body)


async def _translated(request: web.BaseRequest) -> Request:
    """The request as the server takes it; in the path ``%2F`` is a slash and ``+`` is a plus."""
    path, _, query = request.raw_path.partition("?")
    length = request.content_length
    headers = {name.lower(): value for name, value in request.headers.items()}
    body = b""
    if length is None or length <= MAX_BODY_BYTES:
        body = await request.read()
        headers["content-length"] = str(len(body))
    return Request(
        method=request.method,
        path=unquote(path, errors="replace"),
        params=tuple(parse_qsl(query, keep_blank_values=True)),
        body=body,
        headers=headers,
    )
