"""A farm that dies at a chosen step: right after one of its transactions, with the answer or without."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from store import codec
from store.audit import Audit
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import HttpTransport
from store.errors import OutcomeUnknown, StoreUnavailable
from store.farms import Member
from store.ports import Request, Response
from tests.fleet import CLOCK, Cluster, RunningFarm, eventually, start_farm
from tests.toys import Faulty, is_transaction


@dataclass
class Mortal:
    """A farm that is cut off once ``cut`` is set."""

    cluster: Cluster
    farm: RunningFarm
    cut: asyncio.Event
    action: str

    async def falls(self) -> None:
        """Return once it was cut off; if it goes on, fail with what its cycles came to and what stands."""
        try:
            await eventually(self._fell, what="a farm that is cut off")
        except AssertionError:
            raise AssertionError(f"the farm was not cut off\n{await self._standing()}") from None

    async def _fell(self) -> bool:
        # A worker whose item is gone is ended while it waits for its last answer: nobody sees that answer.
        if any(
            (each.actor, each.action) == ("farm/mortal", self.action) for each in await self.cluster.audits()
        ):
            self.cut.set()
        return self.cut.is_set()

    async def _standing(self) -> str:
        cycles = [
            f"{sample.labels} {sample.value:g}"
            for metric in self.farm.registry.collect()
            for sample in metric.samples
            if sample.name == "farmd_cycles_total" and sample.value
        ]
        found = await self.cluster.entries(self.cluster.keys.prefix)
        records = [f"{key} {entry.modify_index} {entry.value!r}" for key, entry in found.items()]
        return "\n".join([*cycles, *records])


@asynccontextmanager
async def mortal_farm(
    cluster: Cluster, address: str, action: str, *, answered: bool, **settings: Any
) -> AsyncIterator[Mortal]:
    """A farm that is cut off right after its transaction of that action; with its answer, or without."""
    transport = Faulty(HttpTransport(Address.from_environment({}, address)))
    client = ConsulClient(transport, clock=CLOCK)
    cut = asyncio.Event()

    async def before(request: Request) -> None:
        if cut.is_set():
            raise StoreUnavailable("cut off")

    async def after(request: Request, response: Response) -> None:
        if cut.is_set() or (is_transaction(request) and response.status == 200 and action in said(request)):
            cut.set()
            if not answered:
                raise OutcomeUnknown("cut off")

    transport.before, transport.after = before, after
    farm = await start_farm(client, "mortal", keys=cluster.keys, **settings)
    try:
        yield Mortal(cluster, farm, cut, action)
    finally:
        farm.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await farm.task
        await client.close()


def said(request: Request) -> list[str]:
    """The actions that a transaction's audit records name."""
    values = [item["KV"]["Value"] for item in json.loads(request.body) if "/audit/" in item["KV"]["Key"]]
    return [codec.decode(Audit, base64.b64decode(value), "audit").action for value in values]


async def bury(cluster: Cluster) -> None:
    """Its session ends, as if its time were over."""
    (entry,) = [
        entry
        for key, entry in (await cluster.entries(cluster.keys.tree("farms"))).items()
        if key.endswith("/mortal")
    ]
    await cluster.client.destroy_session(codec.decode(Member, entry.value, entry.key).session)
