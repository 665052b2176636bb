"""Which resource an object of some kind is, as the API server says.

A kind is gone only if the server knows its group no more or its group lacks the kind, and no definition of
it is there: else the objects are there and only not served now (R20).
"""

from __future__ import annotations

import json
from typing import Any

from farmd.kubernetes.errors import NotFound, Unavailable
from farmd.kubernetes.resources import CRDS, Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport


class Discovery:
    """The resources of one API server; what was found is kept, what was not is asked again."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport = transport
        self._known: dict[tuple[str, str], Resource] = {}

    async def find(self, api_version: str, kind: str) -> Resource | None:
        """The resource of a kind; None: the server has no such kind.

        Raises:
            Unavailable: it has the kind and does not serve it now.
        """
        if (known := self._known.get((api_version, kind))) is not None:
            return known
        self._known |= await self._served(api_version)
        if (known := self._known.get((api_version, kind))) is not None:
            return known
        group = api_version.rpartition("/")[0]
        if group and await self._defined(group, kind):
            raise Unavailable(f"{kind}.{group}: it is defined, and {api_version} is not served now")
        return None

    def forget(self, api_version: str, kind: str) -> None:
        """Ask again next time: the server does not know the path any more."""
        self._known.pop((api_version, kind), None)

    async def _served(self, api_version: str) -> dict[tuple[str, str], Resource]:
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            listed = await self._read(path)
        except NotFound:
            return {}
        return {
            (api_version, each["kind"]): Resource(
                group, version, each["name"], each["kind"], namespaced=each["namespaced"]
            )
            for each in listed["resources"]
            if "/" not in each["name"]
        }

    async def _defined(self, group: str, kind: str) -> bool:
        """Whether a definition of the kind is there."""
        for each in (await self._read(CRDS.path()))["items"]:
            spec = each["spec"]
            if (spec["group"], spec["names"]["kind"]) == (group, kind):
                return True
        return False

    async def _read(self, path: str) -> Any:
        return json.loads(await self._transport.send(ApiRequest("GET", path)))
