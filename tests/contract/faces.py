"""The three servers that every contract case runs against, behind one shape.

``embedded-inprocess`` lives on virtual time, the other two on real time: ``elapse`` hides that. Cases
of the shared real server keep to ``face.prefix``.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from farmd.runtime.clock import SystemClock, SystemIds
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.embedded.http import HttpFace
from store.embedded.server import EmbeddedServer, InProcessTransport
from store.ports import Lane, Request, Response, Transport
from tests import servers
from tests.virtual import VirtualClock, embedded_server

Told = TypeVar("Told")


def told(by_1_8: Told, by_1_14: Told) -> Told:
    """What the version of this run says, where they differ."""
    return by_1_8 if servers.of_this_run() == "1.8" else by_1_14


NO_UUID = told("failed session lookup: index error: UUID must be 36 characters", 'invalid session "abc"')
"""Why nobody holds a lock for the session ``abc``."""
VERSION = told("1.8.7", "1.14.11")
FACES = ("embedded-http", "embedded-inprocess", "consul")
REAL = "consul"


@dataclass
class Face:
    """One server with a client and a raw line to it."""

    name: str
    transport: Transport
    client: ConsulClient
    virtual: VirtualClock | None = None
    prefix: str = field(default_factory=lambda: f"case-{secrets.token_hex(6)}/")

    def key(self, name: str) -> str:
        """A key of this case's own."""
        return self.prefix + name

    async def raw(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: bytes | str | list[Any] | dict[str, Any] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """A request as it is written here; lists and dicts are sent as JSON."""
        if isinstance(body, str):
            body = body.encode()
        if not isinstance(body, bytes):
            body = msgspec.json.encode(body)
        lane = Lane.WATCH if params and "index" in params else Lane.READ
        request = Request(method, path, tuple((params or {}).items()), body, headers or {}, lane)
        return await self.transport.send(request, 90)

    async def txn(self, *operations: dict[str, Any]) -> Response:
        """A raw transaction of KV operations."""
        return await self.raw("PUT", "/v1/txn", body=[{"KV": operation} for operation in operations])

    async def session(self, **fields: Any) -> str:
        """A session without checks: TTL 10 s, behaviour delete, lock-delay 1 ms unless given."""
        body = {"Checks": [], "NodeChecks": [], "TTL": "10s", "Behavior": "delete", "LockDelay": "1ms"}
        answer = await self.raw("PUT", "/v1/session/create", body=body | fields)
        assert answer.status == 200, answer.body
        return str(json_of(answer)["ID"])

    async def elapse(self, seconds: float) -> None:
        """That much of the server's time passes."""
        if self.virtual is not None:
            await self.virtual.advance(seconds)
        else:
            await asyncio.sleep(seconds)


def json_of(answer: Response) -> Any:
    """The body, decoded."""
    return msgspec.json.decode(answer.body)


@asynccontextmanager
async def embedded_inprocess(**options: Any) -> AsyncIterator[Face]:
    """The embedded server without a network, on virtual time."""
    clock = VirtualClock()
    transport = InProcessTransport(embedded_server(clock, **{"version": VERSION, **options}))
    face = Face("embedded-inprocess", transport, ConsulClient(transport, clock=clock), clock)
    yield face
    await face.client.close()


@asynccontextmanager
async def embedded_http(**options: Any) -> AsyncIterator[Face]:
    """The embedded server over HTTP on loopback, on real time."""
    chosen = {"version": VERSION, **options}
    server = EmbeddedServer(SystemClock(), rng=random.Random(1), ids=SystemIds(), **chosen)
    async with HttpFace(server) as listening, over_http("embedded-http", listening.address) as face:
        yield face


@asynccontextmanager
async def over_http(name: str, address: str) -> AsyncIterator[Face]:
    """Whatever answers at an address."""
    transport = HttpTransport(Address.from_environment({}, address))
    face = Face(name, transport, ConsulClient(transport, clock=SystemClock()))
    yield face
    await face.client.close()
