"""Requests to a real Consul, or to the embedded server, over pooled aiohttp connections.

Each lane has its own pool, so that parked watches and slow transactions never delay a session's
renewal. This module must never send a write twice (aiohttp resends PUT and DELETE when a kept
connection is dead), follow a redirect, or report a request as unsent that may have left.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import quote, urlencode

from yarl import URL

from store.consul.authorities import aiohttp
from store.consul.environment import Address
from store.consul.http import KEEP_ALIVE_SECONDS, NEVER_LEFT, READ_BUFFER, connector, reason, sent_once
from store.credentials import CredentialFiles
from store.errors import OutcomeUnknown, StoreUnavailable, TooLarge, UnexpectedAnswer
from store.ports import Lane, Request, Response
from store.version import USER_AGENT

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
        url = self._address.url + quote(request.path, safe="/:~.-_")
        return f"{url}?{urlencode(request.params)}" if request.params else url

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
