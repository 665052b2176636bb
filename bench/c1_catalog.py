"""C1 and C2: 1,000 services with ten endpoints each in Consul's catalogue, kept there by a farm as shipped.

First registration: from the farm's start until all entries are there, without a target. C1: from the write
of a pod's bad health until a reader that waits for its service sees the entry critical, the median over
pods of many services. Baseline: a bare client waits for a key, and at its change sets the check of an entry
of its own; a reader waits in the same way. C2: the requests of the farm at rest, beside parked queries,
renewals and what every farm reads of statuses now and then; one look at the marked checks per minute is
allowed, and none per service.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from bench.farm_process import OF_EVERY_FARM
from bench.fleet import BenchFleet, fleet
from bench.rig import median, note, report, write_all
from bench.seeding import node_names, rc_id
from farmd.kinds import KINDS
from farmd.work.kind import SWEEP_PARTS, SWEEP_SECONDS
from store import codec, operations
from store.catalog import Check
from store.nodes import Node
from store.operations import Operation
from store.reality import Health, Reality
from store.registration import cluster_id
from store.services import Catalog, Service, reference
from tests.catalogs import Reader
from tests.fleet import KEYS

SERVICES, ENDPOINTS, NODES = 1_000, 10, 500
SAMPLES, RATIO, LONGEST = 30, 3.0, 1.0
SETTLE_SECONDS, IDLE_SECONDS = 70, 75
WITHIN = 300.0
CHECKS = msgspec.json.Decoder(list[Check])
BARE = "bare"


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    async with fleet(rcs=SERVICES, pods_each=ENDPOINTS, nodes=NODES, agents=["--port", "20000"]) as setting:
        await write_all(setting.client, [*_addresses(), *_services()])
        mark = await cluster_id(setting.client, KEYS)
        began = time.monotonic()
        farm = setting.start_farm("catalog")
        await registered(setting, mark)
        first = time.monotonic() - began
        note(f"C1 {SERVICES * ENDPOINTS} entries after {first:.1f} s")
        await asyncio.sleep(SETTLE_SECONDS)
        before, used = await farm.requests(), farm.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        sent = await farm.requests() - before
        share = (farm.cpu_seconds() - used) / IDLE_SECONDS
        bare = [await _bare(setting, number) for number in range(SAMPLES)]
        ours = [await _ours(setting, number * (SERVICES // SAMPLES)) for number in range(SAMPLES)]
    met = report(
        "C1 a changed endpoint in the catalogue", median(ours), median(bare),
        f"<= {RATIO:g} x a bare wake-up and transaction, p50", median(ours) <= RATIO * median(bare),
        first_registration=round(first, 1),
    )  # fmt: skip
    met = report(
        "C1b the longest of these", max(ours), max(bare), f"<= {LONGEST:g} s", max(ours) <= LONGEST
    ) and met  # fmt: skip
    asked = {op: count for op, count in sent.items() if op not in OF_EVERY_FARM}
    most = len(KINDS) * IDLE_SECONDS / SWEEP_SECONDS * SWEEP_PARTS + 4 * (IDLE_SECONDS / 60 + 1)
    return report(
        "C2 requests of a farm with 1,000 services in the catalogue at rest", sum(asked.values()), most,
        "no more than the reads of statuses and of the catalogue as a whole", sum(asked.values()) <= most,
        core_share=round(share, 4), requests=asked,
    ) and met  # fmt: skip


def _addresses() -> list[Operation]:
    """Nodes with addresses, without which their pods are no endpoints."""
    return [
        operations.put(
            KEYS.node(name),
            codec.encode(Node(labels={"pool": "web"}, address=f"10.0.{place // 250}.{place % 250 + 1}")),
        )
        for place, name in enumerate(node_names(NODES))
    ]


def _services() -> list[Operation]:
    """A service for each controller, which asks to be in the catalogue."""
    writes = []
    for number in range(SERVICES):
        ident = rc_id(SERVICES + number)
        active = [reference("rcs", rc_id(number))]
        record = Service(id=ident, name=f"app-{number}", port="http", active=active, catalog=Catalog())
        writes.append(operations.put(KEYS.record("services", ident), codec.encode(record)))
        writes.append(operations.put(KEYS.name("services", record.name), codec.encode(ident)))
    return writes


async def registered(setting: BenchFleet, mark: str) -> None:
    """Return when every endpoint has an entry."""
    reader, last, deadline = Reader(setting.server.address), 0, time.monotonic() + WITHIN

    async def whole() -> bool:
        nonlocal last
        found = await reader.ask(f"health/state/passing?node-meta=farmd-cluster:{mark}")
        if len(found) // 1000 > last // 1000:
            note(f"C1 {len(found)} entries")
        last = len(found)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{last} of {SERVICES * ENDPOINTS} entries after {WITHIN:g} s")
        return last >= SERVICES * ENDPOINTS

    while not await whole():
        await asyncio.sleep(0.5)


async def _ours(setting: BenchFleet, number: int) -> float:
    """Seconds from the write of a pod's bad health until a reader of its service sees it."""
    key = KEYS.reality(f"node-{(number * ENDPOINTS) % NODES:05d}", f"app-{number}")
    entry = await setting.client.read(key)
    assert entry is not None
    said = codec.decode(Reality, entry.value, key)
    bad = msgspec.structs.replace(said, health=Health("critical", time.time()))
    return await _seen(setting, f"app-{number}", key, codec.encode(bad))


async def _bare(setting: BenchFleet, number: int) -> float:
    """The same by a client that knows what to write, for an entry of its own."""
    client, reader, name = setting.client, Reader(setting.server.address), f"{BARE}-{number}"
    check = {"CheckID": f"service:{name}", "Name": name, "ServiceID": name, "ServiceName": name}
    body = {"Node": BARE, "Address": "10.9.9.9", "Service": {"ID": name, "Service": name, "Port": 1}}
    checks = {**check, "Node": BARE, "Status": "passing"}
    await reader.ask("catalog/register", method="PUT", body={**body, "Check": checks})
    key = f"{BARE}/{number}"
    await client.put(key, b"good")
    index, _ = await client.get(key)

    async def follow() -> None:
        await client.get(key, index=index, wait=30.0)
        write = {"Check": {**check, "Node": BARE, "Status": "critical"}}
        await client.transaction(
            [operations.CatalogOperation(operations.Verb.SET, name, table="Check", body=write)]
        )

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.05)  # it is parked by then
    took = await _seen(setting, name, key, b"bad")
    await following
    return took


async def _seen(setting: BenchFleet, name: str, key: str, value: bytes) -> float:
    """Seconds from the write of a key until a reader that waits sees a critical check of a service."""
    client, path = setting.client, f"health/checks/{name}"
    index, _ = await client.catalog(path, CHECKS)

    async def critical() -> float:
        at = index
        while True:
            at, found = await client.catalog(path, CHECKS, index=at, wait=30.0)
            if any(each.status == "critical" for each in found):
                return time.monotonic()

    reading = asyncio.create_task(critical())
    await asyncio.sleep(0.05)  # it is parked by then
    began = time.monotonic()
    await client.put(key, value)
    return await asyncio.wait_for(reading, 60.0) - began
