"""Serves an application on one address, by default on loopback: farms and agents by the same rules.

The socket is bound before all other parts are built: a port in use stops the process before it
touches the store, and the presence record can contain the chosen port.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from farmd.web.app import body_in_time
from farmd.web.connections import CONNECTIONS, Connections
from store.ports import Recorder

log = structlog.get_logger()

IDLE_SECONDS = 75.0
"""After so long a connection is closed that sends no request; a request may take as long as it wants."""
LONGEST_LINE, MOST_HEADERS = 8190, 64
"""Bytes of a request's first line, and of each of its headers."""


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
    app: web.Application,
    sock: socket.socket,
    recorder: Recorder,
    port_file: str = "",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve until the block ends, with TLS or without.

    ``port_file`` gets the port once the server listens, so a process that waits for the file can connect.
    """
    logging.getLogger("aiohttp.server").addFilter(_ours)
    connections = app[CONNECTIONS] = Connections(sock, tls, recorder)
    # A request is handled from when its body is there: nobody holds a place by a body that does not come.
    after = app.middlewares.index(body_in_time) + 1 if body_in_time in app.middlewares else 0
    app.middlewares.insert(after, connections.handled)
    app.middlewares.insert(0, connections.arrived)
    runner = _runner(app)
    await runner.setup()
    assert runner.server is not None
    try:
        connections.start(runner.server)
        address, port = sock.getsockname()[:2]
        log.info("web.listening", address=address, port=port, tls=tls is not None)
        if port_file:
            _announce(Path(port_file), port)
        yield
    finally:
        if port_file:
            remove(Path(port_file))
        connections.stop()
        await runner.cleanup()
        connections.drop_all()


def _runner(app: web.Application) -> web.AppRunner:
    """What speaks HTTP. A peer without a credential may cost it little, whatever it sends.

    A body is unpacked for no route, also not one that no route reads: a megabyte of gzip can become a
    gigabyte. A connection ends after a request whose body nobody wanted. A request whose client hung up is
    cancelled, because its answer would be for nobody.
    """
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1.0,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=0,
        auto_decompress=False,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
        max_headers=MOST_HEADERS,
    )


def _ours(record: logging.LogRecord) -> bool:
    """Whether a line of aiohttp's log tells of a fault of this process, and not of bytes that are no HTTP."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


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
