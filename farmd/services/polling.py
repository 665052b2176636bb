"""The endpoints of a service from farms, for those who watch on: a farm answers when they change.

A watch that read the store again and again would cost Consul a read of all pods of the service every second.
Any farm will do, since equal endpoints have one index on all of them.
"""

from __future__ import annotations

import ssl

import aiohttp
import msgspec

from farmd import overview
from farmd.commands.mutation import Call
from farmd.services.endpoints import Endpoint
from store import presence

WAIT_SECONDS = 30
LIMITS = aiohttp.ClientTimeout(total=WAIT_SECONDS + 15, sock_connect=3)


class _Answer(msgspec.Struct):
    """What ``GET /v1/services/NAME/endpoints`` says."""

    index: int
    items: tuple[Endpoint, ...]


class Farms:
    """Asks the farm that answered last, and another one where that is gone."""

    def __init__(self, call: Call, tls: ssl.SSLContext | bool = True) -> None:
        self._call = call
        self._tls = tls
        self._address = ""
        self._index = 0

    async def wait(self, service: str) -> tuple[Endpoint, ...] | None:
        """The endpoints once they are others than the last ones, or as they are after a while; None: no farm
        can tell.
        """
        async with aiohttp.ClientSession(timeout=LIMITS) as http:
            found = await self._ask(http, self._address, service) if self._address else None
            if found is not None:
                return found
            for farm in await overview.farms(self._call.client, self._call.keys):
                if farm.address and (found := await self._ask(http, farm.address, service)) is not None:
                    self._address = farm.address
                    return found
        self._address = ""
        return None

    async def _ask(self, http: aiohttp.ClientSession, farm: str, service: str) -> tuple[Endpoint, ...] | None:
        url = f"{presence.url(farm)}/v1/services/{service}/endpoints"
        params = {"index": str(self._index), "wait": f"{WAIT_SECONDS}s"}
        try:
            async with http.get(url, params=params, allow_redirects=False, ssl=self._tls) as response:
                if response.status != 200:
                    return None  # it does not know them yet, or knows no such service
                answer = msgspec.json.decode(await response.read(), type=_Answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError):
            return None  # another farm, or the store, tells
        self._index = answer.index
        return answer.items
