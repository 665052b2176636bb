"""Requests to a real Consul, or to the embedded server, over pooled connections.

Each lane has its own pool, so that parked watches and slow transactions never delay a session's renewal. This
module must never send a write twice, follow a redirect, or report a request as unsent that may have left.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import quote, urlencode, urlsplit

from store import http
from store.consul.client import ConsulClient
from store.consul.environment import Address, token_source
from store.credentials import CredentialFiles
from store.errors import OutcomeUnknown, StoreUnavailable, TooLarge, UnexpectedAnswer
from store.ports import Clock, Lane, Recorder, Request, Response
from store.version import USER_AGENT

# R23: at most 64 parked queries a process; Consul drops the 201st connection of one client.
POOL_SIZES: Mapping[Lane, int] = {Lane.READ: 32, Lane.WATCH: 64, Lane.WRITE: 16, Lane.SESSION: 4}
MAX_ANSWER_BYTES = 256 * 1024 * 1024


class HttpTransport:
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
        tls = CredentialFiles(address.tls.files, address.tls.context)
        peer = http.Peer(
            address.host,
            address.port,
            address.unix_path,
            tls if address.scheme == "https" else lambda: None,
            address.tls.server_name,
        )
        self._fixed = http.lines_of({"Host": urlsplit(address.url).netloc, **_headers(address)})
        self._pools = {lane: http.Pool(peer, pool_sizes[lane]) for lane in Lane}

    async def __aenter__(self) -> HttpTransport:
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
        most = min(self._max_answer_bytes, request.most or self._max_answer_bytes)
        known = request.known

        def room(status: int, headers: Mapping[str, str]) -> int:
            """A known body is dropped as it comes."""
            dropped = known and status == 200 and headers.get("x-consul-index") == known
            return -1 if dropped else most

        target = self._target(request)
        head = http.head(request.method, target, self._fixed, request.headers, len(request.body))
        try:
            # The limit for the connection is well below the whole limit: if the whole limit is reached, the
            # request has left.
            answer = await self._pools[request.lane].send(
                head,
                request.body,
                room,
                timeout=timeout,
                connect=min(timeout / 2, 5.0),
                repeat=request.method == "GET",
            )
        except http.NeverLeft as error:
            raise StoreUnavailable(f"{self._address}: cannot connect: {error.reason}") from error
        except http.NotHttp as error:
            raise UnexpectedAnswer(f"{self._address}: the answer is not HTTP: {error.reason}") from error
        except http.TooLong as error:
            if request.most:
                raise TooLarge(
                    f"{request.path}: found more than {most} bytes, expected at most that"
                ) from error
            text = f"{self._address}: {error.status} with more than {most} bytes"
            raise UnexpectedAnswer(text, status=error.status) from error
        except http.Lost as error:
            text = f"{request.method} {request.path}: no answer: {error.reason}"
            raise OutcomeUnknown(text, disconnected=error.hung_up) from error
        return Response(answer.status, answer.headers, answer.body)

    async def close(self) -> None:
        """Drop all connections."""
        for pool in self._pools.values():
            pool.close()

    def _target(self, request: Request) -> str:
        path = self._address.path + quote(request.path, safe="/:~.-_")
        params = request.params
        if self._address.datacenter:
            params = (*params, ("dc", self._address.datacenter))
        return f"{path}?{urlencode(params)}" if params else path


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
    transport = HttpTransport(Address.from_environment(env, address))
    return ConsulClient(transport, clock=clock, recorder=recorder, token=token, session_node=session_node)
