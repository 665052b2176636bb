"""P1: schedule 5,000 pods of one RC, fenced and audited, with the farm's watches parked.

Baseline: a bare client replays the bodies that the worker sent onto empty keys, with as many requests in
flight. The fence's indexes are those of a lock and a record that were copied for the replay.
Also compared: one transaction a pod, one after the other.
"""

from __future__ import annotations

import base64
import time

from bench.rig import Recording, add_nodes, median, note, prepared, replay, report, rig
from store import codec, operations
from store.consul.client import ConsulClient
from store.consul.environment import Address
from store.consul.transport import AiohttpTransport
from store.intent import Intent
from store.keys import Keys
from store.manifests import Manifest
from store.pods import Pod
from store.rcs import ReplicationController
from store.sessions import Session
from store.transaction import IN_FLIGHT
from tests.fleet import CLOCK, KEYS, Cluster, eventually, farm_on

PODS = 5000
PAIRS = 3
SINGLES = 300


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    async with rig() as (server, client):
        await add_nodes(client, PODS)
        cluster = Cluster(client)
        recording = Recording(AiohttpTransport(Address.from_environment({}, server.address)))
        farm_client = ConsulClient(recording, clock=CLOCK)
        ours, bare = [], []
        async with farm_on(farm_client, "bench"):
            for number in range(PAIRS):
                rc = await cluster.create_rc(f"web-{number}", 0, manifest=_manifest(number))
                await _owned(client, rc)
                recording.bodies.clear()
                recording.answered.clear()
                started = time.monotonic()
                rc = await cluster.change_rc(rc, replicas_desired=PODS)
                await eventually(lambda: _count(recording, PODS), within=60, what="all pods placed")
                ours.append(recording.answered[-1] - started)
                bodies = await prepared(client, recording.bodies, number)
                bare.append(await replay(server.address, bodies, IN_FLIGHT))
                note(f"P1 pair {number}: ours {ours[-1]:.3f} s, bare {bare[-1]:.3f} s")
                await cluster.change_rc(rc, disabled=True)
        await farm_client.close()
        single = await _one_by_one(client) * PODS / SINGLES
    value, baseline = median(ours), median(bare)
    ok = value <= 1.3 * baseline and single >= 10 * value
    return report(
        "P1 schedule 5000 pods", value, baseline, "<= 1.3 x bare, >= 10 x faster than one by one", ok,
        pods_per_second=round(PODS / value), one_by_one=round(single, 2), faster=round(single / value, 1),
    )  # fmt: skip


def _manifest(number: int) -> Manifest:
    return Manifest(id=f"web-{number}", command=["web"])


async def _owned(client: ConsulClient, rc: ReplicationController) -> None:
    async def locked() -> bool:
        return await client.read(KEYS.status("rcs", rc.id)) is not None

    await eventually(locked, what="the RC is owned")


async def _count(recording: Recording, wanted: int) -> bool:
    return sum(body.count(b'"Key":"farmd/intent/') for body in recording.bodies) >= wanted


async def _one_by_one(client: ConsulClient) -> float:
    """Seconds for a few pods, each in a transaction of its own with a fence and an audit record."""
    keys = Keys("single/")
    session = await Session.open(client, CLOCK, name="single", ttl=3600)
    lock = keys.lock("rcs", "0")
    index = (await client.transaction([operations.lock(lock, b"farm/single/0", session.id)]))[0].modify_index
    pod, intent = (
        codec.encode(Pod(manifest="0" * 64)),
        codec.encode(Intent(manifest="0" * 64, owner="0" * 16)),
    )
    started = time.monotonic()
    for number in range(SINGLES):
        await client.transaction(
            [
                operations.check_session(lock, session.id),
                operations.check_index(lock, index),
                operations.create(keys.pod("0", f"node-{number}", "web"), pod),
                operations.create(keys.intent(f"node-{number}", "web"), intent),
                operations.create(keys.audit("0", f"{number}"), base64.b64encode(b"0" * 200)),
            ]
        )
    return time.monotonic() - started
