"""P2: the time from an edit of a desired count until the intent is committed, with 1,000 and 10,000 RCs.

This process makes the edit; the farm is a process of its own, among 2,000 nodes with agents. It is at rest:
one that was just started looks at each of its items once. Baseline: a plain client in a process of its own
waits for one single key and then sends the same transaction. Both times begin when the write that is reacted
to is acknowledged, and end when the transaction is.
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
from http.client import HTTPConnection

import msgspec

from bench.farm_process import FarmProcess
from bench.fleet import CHORES, NODES, PODS_EACH, RCS, TIMES, fleet
from bench.processes import Child
from bench.rig import median, prepared, report
from bench.seeding import rc_id
from store import codec
from store.consul.client import ConsulClient
from store.rcs import ReplicationController
from tests.fleet import KEYS

ROUNDS = 50
SETTLE_SECONDS, REST_SECONDS = 15, 60 * TIMES
PARK_SECONDS = 0.1 * TIMES
ROWS = ((1_000, 3.0), (RCS, 5.0)) if TIMES == 1 else ((RCS, 8.0),)
"""(number of RCs, highest ratio of the medians); of a larger fleet one row, with ten times' target."""


async def run() -> bool:
    """Measure, print, and tell whether the targets are met."""
    return all([await _row(rcs, most) for rcs, most in ROWS])


async def _row(rcs: int, most: float) -> bool:
    async with fleet(rcs=rcs) as setting:
        farm = setting.start_farm("reacting")
        editor = HTTPConnection(setting.server.address)
        plain = Child("bench.plain_client", [setting.server.address])
        try:
            await setting.claimed([farm], rcs + NODES + CHORES)
            await plain.heard("bench.ready", 10.0)
            await asyncio.sleep(SETTLE_SECONDS)
            await farm.at_rest(REST_SECONDS)
            ours, bare = [], []
            for number in range(ROUNDS):
                seconds, body = await _ours(setting.client, editor, farm, number)
                ours.append(seconds)
                bare.append(await _bare(setting.client, editor, plain, number, body))
        finally:
            await plain.end()
    value, baseline, late, late_baseline = median(ours), median(bare), _p90(ours), _p90(bare)
    return report(
        f"P2 reaction among {rcs} RCs and {rcs * PODS_EACH} pods on {NODES} nodes", value, baseline,
        f"p50 <= {most:.0f} x, p90 <= {2 * most:.0f} x bare wake-up and transaction",
        value <= most * baseline and late <= 2 * most * late_baseline,
        p90=round(late, 4), p90_baseline=round(late_baseline, 4), p90_ratio=round(late / late_baseline, 2),
    )  # fmt: skip


def _write(editor: HTTPConnection, key: str, value: bytes) -> float:
    """Write a key and return when that was acknowledged; it blocks, because a loop would notice it late."""
    editor.request("PUT", f"/v1/kv/{key}", value)
    answer = editor.getresponse()
    acknowledged = time.monotonic()
    if answer.read().strip() != b"true":
        raise RuntimeError(f"{key}: found status {answer.status}, expected that it is written")
    return acknowledged


async def _ours(
    client: ConsulClient, editor: HTTPConnection, farm: FarmProcess, number: int
) -> tuple[float, bytes]:
    """Seconds from the edit's acknowledgement to that of the intent, and the transaction's body."""
    stored = await client.read(KEYS.record("rcs", rc_id(number)))
    assert stored is not None
    rc = codec.decode(ReplicationController, stored.value, stored.key)
    more = msgspec.structs.replace(rc, replicas_desired=rc.replicas_desired + 1)
    before = time.monotonic()
    edited = _write(editor, stored.key, codec.encode(more))
    at, body = await farm.placed(before)
    return at - edited, body


async def _bare(
    client: ConsulClient, editor: HTTPConnection, plain: Child, number: int, body: bytes
) -> float:
    """Seconds for the same by hand."""
    key = f"bare/{number}"
    await client.put(key, b"0")
    (same,) = await prepared(client, [body], f"bar{number:02d}/")
    await plain.ask(f"{key} {base64.b64encode(same).decode()}", "bench.parking")
    await asyncio.sleep(PARK_SECONDS)
    known = len(plain.events)
    edited = _write(editor, key, b"1")
    await plain.until(lambda: len(plain.events) > known, 10.0, "the plain client's transaction")
    return float(plain.events[known]["at"]) - edited


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]
