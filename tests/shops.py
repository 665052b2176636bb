"""A service with two pods, the farms that keep its entries in the catalogue, and a reader. For tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from farmd.commands.mutation import Call, commit
from farmd.runtime.clock import SystemIds
from farmd.services import commands
from store import catalog, codec
from store.rcs import ReplicationController
from store.services import Catalog
from store.status import ItemStatus
from tests.catalogs import Reader
from tests.fleet import CLOCK, Cluster, RunningFarm, client_of, cluster_on, eventually, start_farm
from tests.services import agent, controller, pod, service

N1, N2 = ("10.0.0.1", 20001), ("10.0.0.2", 20002)


@dataclass
class Shop:
    """A service with pods on n1 and n2, somebody who reads the catalogue, and the farms that keep it."""

    address: str
    cluster: Cluster
    call: Call
    rc: ReplicationController
    name: str
    id: str = ""
    farms: list[RunningFarm] = field(default_factory=list)

    @property
    def reader(self) -> Reader:
        return Reader(self.address)

    @property
    def mark(self) -> str:
        return self.cluster.id

    async def farm(self, name: str = "one", **chosen: Any) -> RunningFarm:
        made = await start_farm(
            client_of(self.address), name, keys=self.cluster.keys, kinds=("catalog",), **chosen
        )
        self.farms.append(made)
        return made

    async def pod(self, node: str, port: int, **fields: Any) -> None:
        await pod(self.call, self.rc, node, port=port, **fields)

    async def publish(self, found: Catalog | None) -> None:
        await commit(self.call, await commands.publish(self.call, self.name, found))

    async def passes(self, *wanted: tuple[str, int], name: str = "") -> None:
        """Return once exactly these addresses pass."""

        async def so() -> bool:
            return await self.reader.passing(name or self.name) == sorted(wanted)

        await eventually(so, what=f"passing {wanted}")

    async def entry(self, node: str) -> str:
        return catalog.service_id(self.mark, self.id, node, "hello")

    async def told(self, state: str, item: str = "") -> str:
        """The reason in the status of the service's item, once it has that state."""

        async def so() -> ItemStatus | None:
            key = self.cluster.keys.status("catalog", item or self.id)
            entry = await self.cluster.client.read(key)
            status = None if entry is None else codec.decode(ItemStatus, entry.value, key)
            return status if status is not None and status.state == state else None

        found: ItemStatus = await eventually(so, what=f"the status {state}")
        return found.reason


@asynccontextmanager
async def shop_on(address: str, *places: tuple[str, int]) -> AsyncIterator[Shop]:
    """A shop on that server; ``places``: host and port of the pods on n1 and n2, if somebody asks them."""
    async with cluster_on(address) as cluster:
        call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@desk")
        name = f"web-{SystemIds().new()}"
        rc = await controller(call, name)
        made = Shop(address, cluster, call, rc, name)
        for node, (host, port) in zip(("n1", "n2"), places or (N1, N2), strict=True):
            await agent(call, node, f"http://{host}:8101")
            await made.pod(node, port)
        made.id = await service(call, name, name=name)
        try:
            yield made
        finally:
            for farm in made.farms:
                await farm.close()
                await farm.client.close()
