"""An HTTP server of a test's own, which answers as the test says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Handler, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A server on loopback that answers every path so; its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with serving_app(app, port, host, tls) as address:
        yield address


@asynccontextmanager
async def serving_app(
    app: web.Application, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A server on loopback with the routes of an application; its address."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listening = socket.create_server((host, port))
    await web.SockSite(runner, listening, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://{host}:{listening.getsockname()[1]}"
    finally:
        # asyncio forgets a connection that it accepts right before it stops to listen.
        asyncio.get_running_loop().remove_reader(listening)
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.cleanup()
