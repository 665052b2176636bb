"""Serves an application on one address, by default on loopback.

The socket is bound before all other parts are built: a port in use stops the process before it
touches the store, and the presence record can contain the chosen port.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import structlog
from aiohttp import web

log = structlog.get_logger()

IDLE_SECONDS = 75.0
"""After so long a connection is closed that sends no request; a request may take as long as it wants."""


class CannotListen(Exception):
    """The address is in use or not of this machine, or nobody can be told it; one line that names it."""


@contextlib.contextmanager
def listening(bind: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; port 0 takes a free one.

    Raises:
        CannotListen: the address is in use or not of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise CannotListen(f"web.bind: cannot listen on {bind}:{port}: {reason}") from error
    with sock:
        yield sock


@contextlib.asynccontextmanager
async def serving(
    app: web.Application, sock: socket.socket, port_file: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve until the block ends, with TLS or without.

    ``port_file`` gets the port once the server listens, so a process that waits for the file can connect.
    """
    # A request whose client hung up is cancelled, or it would wait on for nobody.
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1.0,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, sock, ssl_context=tls).start()
        address, port = sock.getsockname()[:2]
        log.info("web.listening", address=address, port=port, tls=tls is not None)
        if port_file:
            _announce(Path(port_file), port)
        yield
    finally:
        if port_file:
            remove(Path(port_file))
        await runner.cleanup()


def _announce(path: Path, port: int) -> None:
    try:
        write_whole(path, f"{port}\n")
    except OSError as error:
        raise CannotListen(f"web.port_file: {path}: {error.strerror or error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that no reader sees a part of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    path.unlink(missing_ok=True)
