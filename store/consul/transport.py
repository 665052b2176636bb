"""Requests to a real Consul, or to the embedded server, over pooled aiohttp connections."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from urllib.parse import quote, urlencode

from yarl import URL

from store.consul.authorities import aiohttp
from store.consul.client import ConsulClient
from store.consul.environment import Address, token_source
from store.credentials import CredentialFiles
from store.errors import InputInvalid, OutcomeUnknown, StoreUnavailable, TooLarge, UnexpectedAnswer
from store.mistakes import shown
from store.ports import Clock, Lane, Recorder, Request, Response
from store.version import USER_AGENT

# What requests over aiohttp share, to Consul and to an API server; no write may be sent twice.

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
        return "it does not speak TLS" if cause.reason in _NO_TLS else f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, socket.gaierror) and cause.strerror:
        return cause.strerror
    if isinstance(error, TimeoutError):
        return "it took too long"
    return " ".join(str(error).split())[:160] or type(error).__name__


# Requests to a real Consul, or to the embedded server, over pooled aiohttp connections.
#
# Each lane has its own pool, so that parked watches and slow transactions never delay a session's
# renewal. This module must never send a write twice (aiohttp resends PUT and DELETE when a kept
# connection is dead), follow a redirect, or report a request as unsent that may have left.

# R23: at most 64 parked queries a process; Consul drops the 201st connection of one client.
POOL_SIZES: Mapping[Lane, int] = {Lane.READ: 32, Lane.WATCH: 64, Lane.WRITE: 16, Lane.SESSION: 4}
MAX_ANSWER_BYTES = 256 * 1024 * 1024


class AiohttpTransport:
    """A ``store.ports.Transport``; build it inside a running loop, and close it."""

    def __init__(
        self,
        address: Address,
        *,
        pool_sizes: Mapping[Lane, int] = POOL_SIZES,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._address = address
        self._max_answer_bytes = max_answer_bytes
        self._tls = CredentialFiles(address.tls.files, address.tls.context)
        headers = _headers(address)
        self._sessions = {
            lane: aiohttp.ClientSession(
                connector=self._connector(pool_sizes[lane]),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                middlewares=(sent_once(_lost),),
                read_bufsize=READ_BUFFER,
                skip_auto_headers=("Content-Type",),
            )
            for lane in Lane
        }

    async def __aenter__(self) -> AiohttpTransport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, request: Request, timeout: float) -> Response:
        """See ``store.ports.Transport``; ``timeout`` includes the wait for a connection.

        Raises:
            StoreUnavailable: the request never left; ``CredentialInvalid``: a certificate is not usable.
            OutcomeUnknown: the request left, and no whole answer came. ``disconnected`` is set if the
                peer hung up without any status.
            UnexpectedAnswer: the answer is not HTTP, or larger than allowed.
            TooLarge: the answer is larger than the request allows.
        """
        # The limit for the connection is well below the whole limit: if the whole limit is reached, the
        # request has left.
        tls = self._tls() if self._address.scheme == "https" else True
        limit = aiohttp.ClientTimeout(total=timeout, connect=min(timeout / 2, 5.0))
        try:
            async with self._sessions[request.lane].request(
                request.method,
                URL(self._url(request), encoded=True),
                data=request.body or None,
                headers=request.headers,
                timeout=limit,
                allow_redirects=False,
                ssl=tls,
                server_hostname=self._address.tls.server_name or None,
            ) as answer:
                body = await self._read(answer, request)
                headers = {name.lower(): value for name, value in answer.headers.items()}
                return Response(answer.status, headers, body)
        except NEVER_LEFT as error:
            raise StoreUnavailable(f"{self._address}: cannot connect: {reason(error)}") from error
        except aiohttp.ClientResponseError as error:
            raise UnexpectedAnswer(f"{self._address}: the answer is not HTTP: {reason(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(request.method, request.path, error) from error

    async def close(self) -> None:
        """Drop all connections."""
        for session in self._sessions.values():
            await session.close()

    def _connector(self, size: int) -> aiohttp.BaseConnector:
        if self._address.unix_path:
            return aiohttp.UnixConnector(
                self._address.unix_path, limit=size, keepalive_timeout=KEEP_ALIVE_SECONDS
            )
        return connector(size)

    def _url(self, request: Request) -> str:
        if not request.path.isprintable():  # Consul answers 400 without a word
            raise InputInvalid(f"found {shown(request.path)}, expected a key of printable characters")
        url = self._address.url + quote(request.path, safe="/:~.-_")
        params = request.params
        if self._address.datacenter:
            params = (*params, ("dc", self._address.datacenter))
        return f"{url}?{urlencode(params)}" if params else url

    async def _read(self, answer: aiohttp.ClientResponse, request: Request) -> bytes:
        """The whole body; refused if it is larger than allowed. A known body is dropped as it comes."""
        known = request.known
        if known and answer.status == 200 and answer.headers.get("X-Consul-Index") == known:
            async for _ in answer.content.iter_any():
                pass
            return b""
        limit = min(self._max_answer_bytes, request.most or self._max_answer_bytes)
        if answer.content_length is not None and answer.content_length <= limit:
            return await answer.read()
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > limit:
                answer.close()
                if request.most:
                    raise TooLarge(f"{request.path}: found more than {limit} bytes, expected at most that")
                raise UnexpectedAnswer(
                    f"{self._address}: {answer.status} with more than {limit} bytes", status=answer.status
                )
        return bytes(body)


def _headers(address: Address) -> dict[str, str]:
    """The headers of every request. In one data centre compression costs more than it saves."""
    headers = {"User-Agent": USER_AGENT, "Accept": "application/json", "Accept-Encoding": "identity"}
    if address.auth is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(address.auth).encode()).decode()}"
    if address.namespace:
        headers["X-Consul-Namespace"] = address.namespace
    if address.partition:
        headers["X-Consul-Partition"] = address.partition
    return headers


def _lost(method: str, path: str, error: BaseException) -> OutcomeUnknown:
    """The error of a missing answer. Consul 1.8 limits connections by a hang-up without a status."""
    hung_up = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError) or (
        isinstance(error, aiohttp.ClientOSError) and not isinstance(error.__cause__, ssl.SSLError)
    )
    return OutcomeUnknown(f"{method} {path}: no answer: {reason(error)}", disconnected=hung_up)


# Builds a process's ``ConsulClient`` from the environment; tests use transports of their own.


def connect(
    env: Mapping[str, str],
    clock: Clock,
    recorder: Recorder | None = None,
    *,
    address: str | None = None,
    session_node: str = "",
) -> ConsulClient:
    """Read ``CONSUL_*`` and build a client; call it inside a running loop and close the client.

    Nothing is sent yet. ``address`` (a flag) overrides ``CONSUL_HTTP_ADDR``.

    Raises:
        InputInvalid: a variable is unusable; the message names it. The files that variables name are read
            when a request is sent, which then raises ``CredentialInvalid``.
    """
    token = token_source(env)
    transport = AiohttpTransport(Address.from_environment(env, address))
    return ConsulClient(transport, clock=clock, recorder=recorder, token=token, session_node=session_node)
