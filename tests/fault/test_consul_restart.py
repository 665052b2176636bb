"""Consul restarted, killed or wiped under farms and real agents: nothing is ever removed (R18, R20, R27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from store import registration
from store.reality import Reality
from tests.agents import Agents, agents_on, alive, shell
from tests.fault.invariants import unfinished, violations
from tests.fleet import RunningFarm, client_of, eventually, long_log, start_farm
from tests.proxy import Proxy
from tests.servers import ConsulServer

NODES = ("n1", "n2", "n3")
FREEZE = {"no_rcs_found", "failsafe_the_answer_lacks_the_sentinel"}
SLEEPER = shell("exec sleep 1000")


@asynccontextmanager
async def fleet(
    consul: ConsulServer, root: Path, proxy: str = ""
) -> AsyncIterator[tuple[Agents, RunningFarm]]:
    """Three real agents and a farm, all in this process, which talk to Consul through ``proxy`` if given."""
    async with agents_on(consul.address, root) as rig:
        address = proxy or consul.address
        for node in NODES:
            await rig.agent(node, consul=address)
        client = client_of(address)
        farm = await start_farm(client, "alive", keys=rig.keys)
        try:
            yield rig, farm
        finally:
            farm.task.cancel()
            await asyncio.gather(farm.task, return_exceptions=True)
            await client.close()


async def sessions(rig: Agents) -> dict[str, str]:
    """The sessions that hold the presence of the farm and of the agents, by key."""
    keys = [rig.keys.farm("alive"), *(rig.keys.agent(node) for node in NODES)]
    found = (await rig.dump()).entries
    return {key: found[key].session for key in keys if key in found}


async def running(rig: Agents, count: int) -> dict[str, Reality]:
    """Wait until that many nodes run the pod; their realities."""
    found: dict[str, Reality] = {}

    async def so() -> bool:
        for node in NODES:
            mine = [r for r in (await rig.realities(node)).values() if r.phase == "running" and r.pid]
            found.pop(node, None)
            if mine:
                (found[node],) = mine
        return len(found) == count and not unfinished(await rig.dump())

    await eventually(so, what=f"{count} running pods")
    return found


@pytest.fixture
def durable() -> Iterator[ConsulServer]:
    with ConsulServer(dev=False) as server:
        yield server


@pytest.mark.parametrize("end", [ConsulServer.stop, ConsulServer.kill], ids=["stopped", "killed"])
async def test_after_a_restart_of_consul_all_goes_on_and_nothing_was_removed(
    durable: ConsulServer, tmp_path: Path, end: Callable[[ConsulServer], None]
) -> None:
    async with fleet(durable, tmp_path) as (rig, farm):
        rc = await rig.create_rc("web", 2, manifest=SLEEPER)
        before = await running(rig, 2)
        await asyncio.to_thread(end, durable)
        await asyncio.to_thread(durable.start)
        await rig.change_rc(rc, replicas_desired=3)
        after = await running(rig, 3)
        assert {node: (r.pid, r.started) for node, r in after.items() if node in before} == {
            node: (r.pid, r.started) for node, r in before.items()
        }
        assert all(alive(reality) for reality in after.values())
        found = await rig.dump()
        assert violations(found) == []
        assert [audit.removed for _, audit in found.audits if audit.removed] == []

        async def owned() -> bool:
            return farm.owned == {rc.id} and rig.keys.lock("rcs", rc.id) in (await rig.dump()).entries

        await eventually(owned, what="the lock, kept or taken again")


@pytest.mark.slow
async def test_r2_a_server_that_replays_its_log_ends_no_session(
    durable: ConsulServer, tmp_path: Path
) -> None:
    """Until the replay reaches a session, Consul answers 404 to its renewal."""
    client = client_of(durable.address)
    await long_log(client)
    await client.close()
    async with fleet(durable, tmp_path) as (rig, farm):
        before = await sessions(rig)
        assert len(before) == 1 + len(NODES)
        for _ in range(2):
            with capture_logs() as told:

                def count(event: str, told: list[EventDict] = told) -> int:
                    return sum(line["event"] == event for line in told)

                async def all_failed() -> int:
                    return count("session.renewal_failed") >= len(before)

                async def all_resumed() -> bool:
                    ended = [task for task in (farm.task, *(a.task for a in rig.running)) if task.done()]
                    assert not ended, ended[0].exception()
                    return 0 < count("session.suspended") == count("session.resumed")

                # A renewal that failed is tried again each second, so that some of them meet the replay.
                await asyncio.to_thread(durable.kill)
                await eventually(all_failed, what="a failed renewal of each session")
                await asyncio.to_thread(durable.start)
                await eventually(all_resumed, what="a good renewal after one that met the replay")
            assert count("session.lost") == 0
            assert await sessions(rig) == before


async def test_r20_a_wiped_consul_removes_nothing_and_nobody_registers_it_anew(
    durable: ConsulServer, tmp_path: Path
) -> None:
    async with (
        Proxy(durable.address) as proxy,
        fleet(durable, tmp_path, proxy.address) as (rig, farm),
    ):
        await rig.create_rc("web", 3, manifest=SLEEPER)
        before = await running(rig, 3)
        await asyncio.to_thread(durable.kill)
        durable.wipe()
        start = len(proxy.requests)
        await asyncio.to_thread(durable.start)

        async def frozen() -> set[str]:
            return FREEZE & farm.alerts.firing.keys()

        await eventually(frozen, what="the alert of the freeze")
        await everybody_looked(proxy, rig, start)
        assert all(alive(reality) for reality in before.values())
        assert farm.alerts.firing.keys() <= FREEZE
        left = (await rig.dump()).entries
        assert rig.keys.cluster not in left
        assert rig.keys.schema not in left
        assert [key for key in left if key.endswith(".present")] == []
        assert [key for key in left if "/pods/" in key or "/intent/" in key or "/audit/" in key] == []
        assert not farm.task.done()
        assert not any(agent.task.done() for agent in rig.running)


async def test_r20_nobody_takes_another_cluster_for_the_one_that_was_wiped(
    durable: ConsulServer, tmp_path: Path
) -> None:
    """As if a farm was started on the wiped store, or another cluster's snapshot restored over it."""
    async with (
        Proxy(durable.address) as proxy,
        fleet(durable, tmp_path, proxy.address) as (rig, farm),
    ):
        await rig.create_rc("web", 3, manifest=SLEEPER)
        before = await running(rig, 3)
        await asyncio.to_thread(durable.kill)
        durable.wipe()
        proxy.refuse()
        start = len(proxy.requests)
        await asyncio.to_thread(durable.start)
        former, _ = rig.id, await rig.register()
        for node in NODES:
            await registration.register_node(rig.client, rig.keys, node)
        proxy.accept()

        async def frozen() -> bool:
            return bool(farm.alerts.firing)

        await eventually(frozen, what="the alert of the freeze")
        await everybody_looked(proxy, rig, start)
        assert rig.id != former
        assert all(alive(reality) for reality in before.values())
        left = (await rig.dump()).entries
        assert [key for key in left if "/pods/" in key and not key.endswith(".present")] == []
        assert [key for key in left if "/audit/" in key or "/failsafe/rcs" in key] == []
        assert not farm.task.done()


async def everybody_looked(proxy: Proxy, rig: Agents, start: int) -> None:
    """Return once each agent asked for its intents, and the farm for its trees, and then asked again."""
    wanted = {f"/v1/kv/{rig.keys.intents(node)}" for node in NODES}
    wanted |= {f"/v1/kv/{rig.keys.tree(family)}" for family in ("rcs", "nodes")}

    async def so() -> bool:
        asked = [seen.path for seen in proxy.requests[start:]]
        return all(sum(path.startswith(each) for path in asked) >= 2 for each in wanted)

    try:
        await eventually(so, what="looks at the store")
    except AssertionError as error:
        asked = {each: sum(s.path.startswith(each) for s in proxy.requests[start:]) for each in wanted}
        raise AssertionError(f"{error}: {asked}") from None
