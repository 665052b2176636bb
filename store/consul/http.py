"""What requests over aiohttp share, to Consul and to an API server; no write may be sent twice."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable

from store.consul.authorities import aiohttp

KEEP_ALIVE_SECONDS = 55.0
READ_BUFFER = 1024 * 1024
_NO_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
"""What OpenSSL says where a plain HTTP server answers, by version."""
NEVER_LEFT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


def connector(limit: int) -> aiohttp.TCPConnector:
    """Connections that are kept for the next request, ``limit`` at once; 0: any number.

    One that ends under TLS waits for the peer's goodbye, which Python before 3.12.7 awaits for ever.
    """
    return aiohttp.TCPConnector(
        limit=limit,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        enable_cleanup_closed=aiohttp.connector.NEEDS_CLEANUP_CLOSED,
    )


def sent_once(lost: Callable[[str, str, BaseException], Exception]) -> aiohttp.ClientMiddlewareType:
    """A middleware that raises ``lost(method, path, error)`` for a broken connection, before aiohttp sends a
    write a second time.
    """

    async def send(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.method == "GET":
            return await handler(request)
        try:
            return await handler(request)
        except NEVER_LEFT:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise lost(request.method, request.url.path, error) from error

    return send


def reason(error: BaseException) -> str:
    """Why no answer came, in the system's words if there are any; aiohttp wraps them in its own."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        refused = error.certificate_error
        why = refused.verify_message if isinstance(refused, ssl.SSLCertVerificationError) else str(refused)
        return f"its certificate is refused: {why}"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS" if cause.reason in _NO_TLS else f"TLS fails: {cause.reason or cause}"
    if isinstance(cause, socket.gaierror) and cause.strerror:
        return cause.strerror
    if isinstance(error, TimeoutError):
        return "it took too long"
    return " ".join(str(error).split())[:160] or type(error).__name__
