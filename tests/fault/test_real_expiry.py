"""What takes as long as a TTL does: real expiry, suspension by the own clock, many renewals.

The tests wait for twenty seconds and more, nearly all of it idle, beside all others. Each has a loop of its
own, because what one computes would delay the renewals of the others' farms.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import ExitStack
from functools import partial

import pytest

from tests.fault.farm_process import Nursery
from tests.fault.rig import ASKING, Rig, id_preferring, rig_on
from tests.fault.test_storms import lock_index, renewals
from tests.fault.test_zombie import is_a_healthy_member_again, nothing_was_written, write_in_hand
from tests.fleet import LIMIT as LONGEST
from tests.fleet import RunningFarm, in_time
from tests.proxy import Proxy, Seen
from tests.servers import ConsulServer

pytestmark = pytest.mark.slow

LIMIT = 64
FARM_HOST = "127.0.0.2"
RENEWALS = 8  # more than twice the TTL at a third of it
TTL = 20.0  # the farm stops at nine tenths of it, and all that a test does then is done before its double


async def test_r2_a_farm_that_is_killed_in_the_middle_loses_its_locks_by_its_ttl(
    consul_dev: str, nursery: Nursery
) -> None:
    """SIGKILL while half of 200 pods is committed; Consul itself frees the lock."""
    async with rig_on(consul_dev, nursery, nodes=200) as rig, Proxy(consul_dev) as proxy:
        rc = await rig.rc(200, manifest=ASKING, id=id_preferring("victim", "survivor"))
        hold = proxy.hold_transaction(5)
        victim = rig.process("victim", proxy.address)
        await in_time(hold.reached.wait())
        await rig.farm("survivor")
        await victim.end()
        await rig.owned_by("survivor", rc.id)
        hold.release()
        await in_time(hold.finished.wait())
        dump = await rig.settled("killed in the middle")
        assert len(dump.pods) == len(dump.intents) == 200


async def test_r2_a_farm_that_was_stopped_past_its_ttl_writes_nothing_and_comes_back(
    consul_dev: str, nursery: Nursery
) -> None:
    """SIGSTOP with a write in hand; take-over; SIGCONT."""
    async with write_in_hand(consul_dev, nursery) as (rig, _, victim, hold, rc_id):
        former = await rig.session_of("victim")
        victim.pause()
        await rig.owned_by("survivor", rc_id)
        await rig.settled("take-over")
        lock = await lock_index(rig, rc_id)
        victim.resume()
        hold.release()
        await in_time(hold.finished.wait())
        await is_a_healthy_member_again(rig, former)
        await nothing_was_written(rig, hold, rc_id, lock)


async def test_r2_while_renewals_hang_a_farm_stops_writing_by_its_own_clock_and_resumes_by_itself(
    consul_dev: str,
) -> None:
    """Consul would still let it: it ends a session at twice its TTL."""
    async with rig_on(consul_dev, nodes=5) as rig, Proxy(consul_dev) as proxy:
        rc = await rig.rc(1)
        farm = await rig.farm("alive", proxy.address, ttl=TTL)
        await rig.settled("before")
        session, lock = await rig.session_of("alive"), await lock_index(rig, rc.id)
        holds = [proxy.hold(renewals, k) for k in range(1, 40)]
        wanted = 1
        # A renewal that was under way when they began to hang still prolongs the session.
        while not (holds[0].reached.is_set() and _suspended(farm)):
            # Something to write, all the time; each is written until the suspension.
            wanted = 3 - wanted
            await rig.change(rc.id, replicas_desired=wanted)
            await rig.until(partial(_written_or, rig, rc.id, wanted, farm), "a write or the suspension")
        assert await rig.client.session_info(session) is not None, "suspended before Consul ended it"
        await _another_renewal(rig, proxy)  # what was sent before the suspension has come
        written, sent = await rig.count(rc.id), len(_writes(proxy, session))
        await rig.change(rc.id, replicas_desired=5)
        await _another_renewal(rig, proxy)
        assert (await rig.count(rc.id), len(_writes(proxy, session))) == (written, sent), "nothing meanwhile"
        for hold in holds:
            hold.release()
        await rig.settled("resumed")
        assert await rig.session_of("alive") == session
        assert await lock_index(rig, rc.id) == lock


async def _another_renewal(rig: Rig, proxy: Proxy) -> None:
    """Wait until the farm has given up a renewal and tries the next one."""
    given_up = sum(map(renewals, proxy.requests)) + 1

    async def so() -> bool:
        return sum(map(renewals, proxy.requests)) >= given_up

    await rig.until(so, "one more renewal")


def _suspended(farm: RunningFarm) -> bool:
    """Whether the farm has found that it may not write now, and says so."""
    suspended, resumed = [
        farm.metric("farmd_session_events_total", event=event) for event in ("suspended", "resumed")
    ]
    return suspended > resumed


async def _written_or(rig: Rig, rc_id: str, wanted: int, farm: RunningFarm) -> bool:
    return _suspended(farm) or await rig.count(rc_id) == wanted


def _writes(proxy: Proxy, session: str) -> list[Seen]:
    return [seen for seen in proxy.requests if seen.path == "/v1/txn" and session.encode() in seen.body]


async def test_r1_a_farm_keeps_renewing_while_consul_turns_every_further_connection_away() -> None:
    """The farm has all its watches (R23)."""
    with ConsulServer(dev=True, http_max_conns_per_client=LIMIT) as server, ExitStack() as others:
        async with rig_on(server.address, nodes=60) as rig, Proxy(server.address, source=FARM_HOST) as proxy:
            # Large enough that the trees are watched by sixteen queries each.
            rc = await rig.rc(1100, replicas_per_node=20)
            await rig.farm("alive", proxy.address)
            await rig.settled("before")
            session, lock = await rig.session_of("alive"), await lock_index(rig, rc.id)
            await asyncio.to_thread(take_all_connections, server, others)
            before = sum(map(renewals, proxy.requests))

            async def renewed() -> bool:
                return sum(map(renewals, proxy.requests)) >= before + RENEWALS

            await rig.change(rc.id, replicas_desired=1101)
            await rig.until(renewed, "renewals above the limit")
            assert await rig.session_of("alive") == session
            assert await lock_index(rig, rc.id) == lock
            others.close()
            await rig.settled("after")
            assert await rig.session_of("alive") == session


def take_all_connections(server: ConsulServer, stack: ExitStack) -> None:
    """Connections from the farm's address until Consul accepts no more of them."""
    taken = [
        stack.enter_context(
            socket.create_connection(
                (server.host, server.http_port), timeout=LONGEST, source_address=(FARM_HOST, 0)
            )
        )
        for _ in range(LIMIT + 1)
    ]
    turned_away, _, _ = select.select(taken, [], [], LONGEST)
    assert turned_away, f"{len(taken)} connections and none was turned away"
