"""What takes as long as a TTL does: real expiry, suspension by the own clock, many renewals.

The cases wait for twenty seconds and more, nearly all of it idle, so they run at the same time, each over a
cluster of its own. A failure names its case.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

import pytest

from tests.fault.farm_process import Nursery
from tests.fault.rig import ASKING, Rig, id_preferring, rig_on
from tests.fault.test_storms import lock_index, renewals
from tests.fault.test_zombie import is_a_healthy_member_again, nothing_was_written, write_in_hand
from tests.fleet import RunningFarm, in_time
from tests.proxy import Proxy, Seen
from tests.servers import ConsulServer

LIMIT = 64
FARM_HOST = "127.0.0.2"
RENEWALS = 8  # more than twice the TTL at a third of it


async def killed_in_the_middle(consul: str, nursery: Nursery) -> None:
    """SIGKILL while half of 200 pods is committed; Consul itself frees the lock."""
    async with rig_on(consul, nursery, nodes=200) as rig, Proxy(consul) as proxy:
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


async def stopped_past_its_ttl(consul: str, nursery: Nursery) -> None:
    """SIGSTOP with a write in hand; take-over; SIGCONT: the zombie writes nothing and comes back."""
    async with write_in_hand(consul, nursery) as (rig, _, victim, hold, rc_id):
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


async def renewals_hang(consul: str, _: Nursery) -> None:
    """R2: by its own clock the farm stops writing while Consul would still let it, and resumes by itself."""
    async with rig_on(consul, nodes=5) as rig, Proxy(consul) as proxy:
        rc = await rig.rc(1)
        farm = await rig.farm("alive", proxy.address)
        await rig.settled("before")
        session, lock = await rig.session_of("alive"), await lock_index(rig, rc.id)
        holds = [proxy.hold(renewals, k) for k in range(1, 40)]
        wanted = 1
        while not _suspended(farm):
            # Something to write, all the time; each is written until the suspension.
            wanted = 3 - wanted
            await rig.change(rc.id, replicas_desired=wanted)
            await rig.until(partial(_written_or, rig, rc.id, wanted, farm), "a write or the suspension")
        assert await rig.client.session_info(session) is not None, "suspended before Consul ended it"
        written, sent = await rig.count(rc.id), len(_writes(proxy, session))
        await rig.change(rc.id, replicas_desired=5)
        given_up = sum(map(renewals, proxy.requests)) + 1

        async def another_renewal() -> bool:
            return sum(map(renewals, proxy.requests)) >= given_up

        await rig.until(another_renewal, "one more renewal")
        assert (await rig.count(rc.id), len(_writes(proxy, session))) == (written, sent), "nothing meanwhile"
        for hold in holds:
            hold.release()
        await rig.settled("resumed")
        assert await rig.session_of("alive") == session
        assert await lock_index(rig, rc.id) == lock


def _suspended(farm: RunningFarm) -> bool:
    """Whether the farm has found that it may not write now, and says so."""
    return farm.metric("farmd_session_events_total", event="suspended") > 0


async def _written_or(rig: Rig, rc_id: str, wanted: int, farm: RunningFarm) -> bool:
    return _suspended(farm) or await rig.count(rc_id) == wanted


def _writes(proxy: Proxy, session: str) -> list[Seen]:
    return [seen for seen in proxy.requests if seen.path == "/v1/txn" and session.encode() in seen.body]


async def too_many_connections(_: str, __: Nursery) -> None:
    """Consul turns every further connection away: a farm with all its watches keeps renewing (R1, R23)."""
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
    for _ in range(LIMIT + 1):
        connection = stack.enter_context(
            socket.create_connection(
                (server.host, server.http_port), timeout=10, source_address=(FARM_HOST, 0)
            )
        )
        connection.settimeout(0.5)
        try:
            if connection.recv(1) == b"":
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    raise AssertionError(f"{LIMIT} connections and none was turned away")


CASES: list[Callable[[str, Nursery], Awaitable[None]]] = [
    killed_in_the_middle,
    stopped_past_its_ttl,
    renewals_hang,
    too_many_connections,
]


@pytest.mark.slow
@pytest.mark.xdist_group("expiry")
async def test_sessions_end_when_they_must_and_live_while_they_can(consul_dev: str, nursery: Nursery) -> None:
    results = await asyncio.gather(*(case(consul_dev, nursery) for case in CASES), return_exceptions=True)
    failures = []
    for case, result in zip(CASES, results, strict=True):
        if isinstance(result, Exception):
            result.add_note(f"in the case {case.__name__}")
            failures.append(result)
    if failures:
        raise ExceptionGroup("expiry", failures)
