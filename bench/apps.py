"""A farm with apps for rows about them: in this process, with every transaction that it sends and when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.rig import rig
from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemIds
from store.apps import KIND
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.ports import Request, Response
from tests.fleet import CLOCK, KEYS, farm_on

DROPPED = ("check-index", "check-session", "check-not-exists", "lock", "unlock")


class Sent(HttpTransport):
    """Keeps the transactions of apps that were acknowledged, with the times; each sets ``acknowledged``."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.bodies: list[tuple[float, bytes]] = []
        self.acknowledged = asyncio.Event()

    async def send(self, request: Request, timeout: float) -> Response:
        """Send a request."""
        response = await super().send(request, timeout)
        if request.path == "/v1/txn" and response.status == 200 and b"/rcs/" in request.body:
            self.bodies.append((time.monotonic(), request.body))
            self.acknowledged.set()
        return response


class Setting:
    """A durable Consul, people at it, and a farm that keeps apps."""

    def __init__(self, address: str, client: ConsulClient, sent: Sent) -> None:
        self.address, self.client, self.sent = address, client, sent
        self.call = Call(client, KEYS, CLOCK, SystemIds(), "user/bench@here")


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    """A farm of the kind ``apps`` alone, so that nothing else is measured."""
    async with rig() as (server, client):
        sent = Sent(Address.from_environment({}, server.address))
        own = ConsulClient(sent, clock=CLOCK)
        try:
            async with farm_on(own, "apps", kinds=(KIND,)):
                yield Setting(server.address, client, sent)
        finally:
            await own.close()


def bare(bodies: list[bytes], prefix: str) -> list[bytes]:
    """The same writes under another prefix, without what they check."""
    found = []
    for body in bodies:
        kept: list[dict[str, Any]] = [item for item in json.loads(body) if item["KV"]["Verb"] not in DROPPED]
        for item in kept:
            each = item["KV"]
            each["Key"] = prefix + each["Key"].removeprefix(KEYS.prefix)
            each["Verb"] = {"cas": "set", "delete-cas": "delete"}.get(each["Verb"], each["Verb"])
            each.pop("Index", None)
        found.append(json.dumps(kept, separators=(",", ":")).encode())
    return found


def controller(name: str) -> dict[str, Any]:
    """A document of a controller without pods."""
    pod = {"id": name, "command": ["/srv/app", "--port", "8080"], "env": {"MODE": "production"}}
    return {"apiVersion": "farmd/v1", "kind": "rc", "name": name, "replicas": 0, "pod": pod}
