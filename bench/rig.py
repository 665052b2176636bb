"""The parts that rows share: a durable Consul, registered nodes, a replay, and the JSON line."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from bench.farm_process import FarmProcess
from store import operations
from store.consul.client import ConsulClient
from store.locks import Holder
from store.operations import Operation
from store.registration import register_cluster
from store.sessions import Session
from store.transaction import Group, pack, submit
from tests.fleet import CLOCK, KEYS, client_of
from tests.servers import ConsulServer

LOOSE = {"cas": "set", "delete-cas": "delete"}
OF_PODS = (KEYS.tree("pods"), KEYS.tree("intent"))


def report(name: str, value: float, baseline: float, target: str, ok: bool, **more: object) -> bool:
    """Print one row; ``value`` and ``baseline`` are in seconds unless the row's name says otherwise."""
    ratio = value / baseline if baseline else 0.0
    line = {"name": name, "value": round(value, 4), "baseline": round(baseline, 4), "ratio": round(ratio, 2)}
    print(json.dumps({**line, "target": target, "ok": ok, **more}), flush=True)
    return ok


def note(text: str) -> None:
    """Print progress for people on stderr; stdout is for rows."""
    print(f"# {text}", file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """The median of the measurements."""
    return statistics.median(values)


@asynccontextmanager
async def rig(config: dict[str, Any] | None = None) -> AsyncIterator[tuple[ConsulServer, ConsulClient]]:
    """A durable Consul with a registered cluster, and a client; ``config`` is more of its configuration."""
    with ConsulServer(dev=False, http_max_conns_per_client=2000, config=config) as server:
        client = client_of(server.address)
        await register_cluster(client, KEYS, _Ids())
        try:
            yield server, client
        finally:
            await client.close()


class _Ids:
    def __init__(self) -> None:
        self._next = 0

    def new(self) -> str:
        self._next += 1
        return f"{self._next:016x}"


async def held(client: ConsulClient, farm: FarmProcess, kind: str = "") -> int:
    """How many locks a farm holds, of one kind or of all."""
    page = await client.list(KEYS.lock(kind, "") if kind else KEYS.tree("locks"))
    return sum(Holder.parse(raw.decoded()).id == farm.name for raw in page.items)


async def shared(
    client: ConsulClient, farms: Sequence[FarmProcess], kind: str, each: int, within: float = 120.0
) -> None:
    """Return when every farm holds about so many items of a kind, and no lock is handed over any more.

    Raises:
        RuntimeError: they do not come to that.
    """
    deadline, before = time.monotonic() + within, dict[str, int]()
    while True:
        found = {farm.name: await held(client, farm, kind) for farm in farms}
        if found == before and max(found.values()) <= 1.1 * each and sum(found.values()) == each * len(farms):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the farms did not share the items evenly: {found}")
        before = found
        await asyncio.sleep(1.0)


async def write_all(client: ConsulClient, writes: list[Operation]) -> None:
    """Write many records in full, pipelined transactions."""
    groups = [Group((write,), None) for write in writes]
    results = await submit(client, pack(groups, max_bytes=400_000), clock=CLOCK, in_flight=16)
    failed = [result.rejected or result.error for result in results if not result.committed]
    if failed:
        raise RuntimeError(f"{len(failed)} transactions of the set-up failed: {failed[0]}")


async def prepared(
    client: ConsulClient, bodies: Sequence[bytes], prefix: str, *, of: str = KEYS.tree("intent")
) -> list[bytes]:
    """The bodies with a key below ``of``, for another prefix of the same length, with fences that hold there.

    What they compare with earlier versions of pods and intents is written without comparing.
    """
    session = await Session.open(client, CLOCK, name="bare", ttl=3600)
    fences: dict[str, int] = {}
    ready = []
    for body in bodies:
        decoded = json.loads(body)
        if not any(item["KV"]["Key"].startswith(of) for item in decoded):
            continue  # a status, which is not part of the plan
        for item in list(decoded):
            each = item["KV"]
            if each["Verb"] in LOOSE and each.get("Index"):
                each["Verb"] = LOOSE[each["Verb"]]
            elif each["Verb"] == "check-index" and each["Key"].startswith(OF_PODS):
                decoded.remove(item)
                continue
            each["Key"] = prefix + each["Key"].removeprefix(KEYS.prefix)
            if each["Verb"] in ("check-session", "check-index"):
                each.pop("Session", None)
                if each["Key"] not in fences:
                    lock = operations.lock(each["Key"], b"farm/bare/0", session.id)
                    fences[each["Key"]] = (await client.transaction([lock]))[0].modify_index
                if each["Verb"] == "check-session":
                    each["Session"] = session.id
                else:
                    each["Index"] = fences[each["Key"]]
        ready.append(json.dumps(decoded, separators=(",", ":")).encode())
    return ready


async def replay(address: str, bodies: Sequence[bytes], in_flight: int) -> float:
    """Seconds that a bare client needs for these transactions, with ``in_flight`` at a time."""
    gate = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(body: bytes) -> None:
            async with gate, session.put(f"http://{address}/v1/txn", data=body) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(
                        f"replayed transaction: found {response.status} {answer[:200]!r}, expected 200"
                    )

        started = time.monotonic()
        await asyncio.gather(*(one(body) for body in bodies))
        return time.monotonic() - started
