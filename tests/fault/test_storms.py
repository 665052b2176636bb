"""Connections that are slow, cut, refused or answered with errors: the session lives on (R1, R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fault.rig import Rig, rig_on
from tests.proxy import Proxy, Seen

RENEWALS = 3


def renewals(seen: Seen) -> bool:
    """Matches ``PUT /v1/session/renew/…``."""
    return seen.path.startswith("/v1/session/renew/")


async def resets(proxy: Proxy) -> None:
    """Cut every connection, again and again, as soon as there are any."""
    while True:
        proxy.reset()
        await asyncio.sleep(0.05)


async def answers(proxy: Proxy, status: int) -> None:
    """Answer everything with an error, in bursts with a little air between them."""
    while True:
        proxy.fail(status)
        await asyncio.sleep(1.0)
        proxy.recover()
        await asyncio.sleep(0.5)


async def slowness(proxy: Proxy) -> None:
    """Delay every request."""
    proxy.latency = 0.3
    await asyncio.Event().wait()


STORMS: dict[str, Callable[[Proxy], object]] = {
    "resets": resets,
    "throttled": lambda proxy: answers(proxy, 429),
    "errors": lambda proxy: answers(proxy, 500),
    "slow": slowness,
}


async def survives(consul: str, name: str) -> None:
    """A farm works through a storm that lasts for several renewals, and keeps session and claim."""
    async with rig_on(consul, nodes=40) as rig, Proxy(consul) as proxy:
        rc = await rig.rc(10)
        await rig.farm("alive", proxy.address)
        await rig.settled(name)
        session, lock = await rig.session_of("alive"), await lock_index(rig, rc.id)
        before = sum(map(renewals, proxy.requests))
        storm = asyncio.ensure_future(STORMS[name](proxy))  # type: ignore[arg-type]
        await rig.change(rc.id, replicas_desired=40)

        async def lasted() -> bool:
            return sum(map(renewals, proxy.requests)) >= before + RENEWALS

        try:
            await rig.until(lasted, f"renewals during {name}")
        finally:
            storm.cancel()
            await asyncio.gather(storm, return_exceptions=True)
            proxy.recover()
            proxy.latency = 0.0
        await rig.settled(name)
        assert await rig.session_of("alive") == session, name
        assert await lock_index(rig, rc.id) == lock, f"{name}: the same claim throughout"


async def lock_index(rig: Rig, rc_id: str) -> int:
    entry = await rig.client.read(rig.keys.lock("rcs", rc_id), mode="consistent")
    assert entry is not None
    return entry.modify_index


async def test_r1_no_storm_of_errors_loses_the_session(consul_dev: str) -> None:
    """All storms at once, each over a cluster of its own, since each lasts as long as renewals take."""
    results = await asyncio.gather(*(survives(consul_dev, name) for name in STORMS), return_exceptions=True)
    if failures := [result for result in results if isinstance(result, Exception)]:
        raise ExceptionGroup("storms", failures)


@pytest.mark.parametrize("refused", [2])
async def test_a_server_that_is_away_for_a_while_is_waited_for(consul_dev: str, refused: int) -> None:
    """Every connection refused until several renewals were: as with a restarting server."""
    async with rig_on(consul_dev, nodes=10) as rig, Proxy(consul_dev) as proxy:
        rc = await rig.rc(5)
        await rig.farm("alive", proxy.address)
        await rig.settled("before")
        session = await rig.session_of("alive")
        proxy.refuse()
        await rig.change(rc.id, replicas_desired=10)
        turned = proxy.refused

        async def tried() -> bool:
            return proxy.refused >= turned + 20 * refused

        await rig.until(tried, "attempts to connect")
        assert await rig.count(rc.id) == 5
        proxy.accept()
        await rig.settled("after")
        assert await rig.session_of("alive") == session
