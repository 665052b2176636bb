"""What one thing costs Consul, in CPU time and memory of its process, for ``bench.model``.

``python -m bench.unit_costs`` prints one JSON line. ``FARMD_TEST_CONSUL=1.14`` chooses another version.
CPU time is that of Consul's process, so other programs on the machine hardly count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable

from bench.processes import cpu_seconds, resident_megabytes
from bench.rig import rig, write_all
from farmd.process.start import collect_rarely
from store import operations
from store.consul.client import ConsulClient
from store.sessions import Session
from tests.fleet import CLOCK
from tests.servers import ConsulServer, of_this_run

KEYS, OWNERS, VALUE = 50_000, 2_000, b"v" * 120
ROUNDS, SESSIONS, PARKED = 5, 2_000, 1_000
AT_ONCE = 16
PACED, A_SECOND = 1_500, 150


async def _each(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def do(number: int) -> None:
        async with gate:
            await one(number)

    await asyncio.gather(*(do(number) for number in range(count)))


class Costs:
    """Measures steps by the CPU time and the memory of Consul."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def megabytes(self) -> float:
        """Consul's resident memory."""
        return resident_megabytes(self._pid)

    async def cpu(self, count: int, one: Callable[[int], Awaitable[object]]) -> float:
        """CPU seconds of Consul for each of ``count`` calls."""
        before = cpu_seconds(self._pid)
        await _each(count, one)
        return (cpu_seconds(self._pid) - before) / count

    async def paced(self, one: Callable[[int], Awaitable[object]]) -> float:
        """CPU seconds of Consul for each of ``PACED`` calls that come one by one, which cost more each."""
        idle = cpu_seconds(self._pid)
        await asyncio.sleep(PACED / A_SECOND)
        before = cpu_seconds(self._pid)
        async with asyncio.TaskGroup() as calls:
            for number in range(PACED):
                calls.create_task(one(number))  # type: ignore[arg-type]
                await asyncio.sleep(1 / A_SECOND)
        return (cpu_seconds(self._pid) - before - (before - idle)) / PACED


async def measured() -> dict[str, float]:
    """The unit costs; names end with their unit. First what a new process shows best: a full one has room."""
    async with rig() as (server, client):
        costs = Costs(server.pid)
        found: dict[str, float] = {"consul_megabytes": costs.megabytes()}
        found |= await _parked(client, server, costs)
        found |= await _sessions(client, costs)
        grown = costs.megabytes()
        writes = [operations.put(f"u/{n % OWNERS:04x}/node-{n:06d}/app-{n:06d}", VALUE) for n in range(KEYS)]
        await write_all(client, writes)
        await asyncio.sleep(5.0)
        found["key_kilobytes"] = (costs.megabytes() - grown) * 1e3 / KEYS
        found["resend_us_an_entry"] = 1e6 * await costs.cpu(ROUNDS, lambda _: client.list("u/")) / KEYS
        names = await costs.cpu(4 * ROUNDS, lambda _: client.keys("u/", separator="/"))
        found["names_us_an_entry"] = 1e6 * names / KEYS
        found |= await _transactions(client, costs)
    return {name: round(value, 3) for name, value in found.items()}


async def _transactions(client: ConsulClient, costs: Costs) -> dict[str, float]:
    async def write(number: int, size: int) -> None:
        await client.transaction([operations.put(f"w/{number}/{n}", VALUE) for n in range(size)])

    small = await costs.cpu(1_000, lambda number: write(number, 4))
    large = await costs.cpu(300, lambda number: write(number, 60))
    an_operation = (large - small) / 56
    return {"transaction_us": 1e6 * (small - 4 * an_operation), "operation_us": 1e6 * an_operation}


async def _sessions(client: ConsulClient, costs: Costs) -> dict[str, float]:
    before, sessions = costs.megabytes(), list[Session]()

    async def open_one(number: int) -> None:
        sessions.append(await Session.open(client, CLOCK, name=f"unit-{number}", ttl=3600))

    await _each(SESSIONS, open_one)
    grown = costs.megabytes() - before
    renewal = await costs.paced(lambda number: client.renew_session(sessions[number].id))
    reading = await costs.paced(lambda number: client.read(f"u/{number}"))
    return {
        "session_kilobytes": grown * 1e3 / SESSIONS,
        "renewal_us": 1e6 * renewal,
        "read_us": 1e6 * reading,
    }


async def _parked(client: ConsulClient, server: ConsulServer, costs: Costs) -> dict[str, float]:
    """Memory of Consul for a parked query of this client, on one connection each."""
    index, _ = await client.get("u/parked")
    before, readers = costs.megabytes(), []
    for number in range(PARKED):
        reader, writer = await asyncio.open_connection(server.host, server.http_port)
        writer.write(
            f"GET /v1/kv/u/p{number}?index={index}&wait=60s HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        )
        readers.append((reader, writer))
    await asyncio.sleep(2.0)
    grown = costs.megabytes() - before
    for _, writer in readers:
        writer.close()
    return {"parked_kilobytes": grown * 1e3 / PARKED}


if __name__ == "__main__":
    collect_rarely()
    gc.freeze()
    print(json.dumps({"consul": of_this_run(), **asyncio.run(measured())}), flush=True)
    sys.exit(0)
