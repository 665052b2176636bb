"""What outlives what: workloads outlive the agent and the store (R16, R20, R26, R27)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from farmd.agent.intents import Intents
from store import registration
from store.presence import start_ticks
from tests.agents import Agents, Running, agents_on, alive, kill, shell, web
from tests.fleet import eventually
from tests.servers import ConsulServer

SLEEPER = shell("exec sleep 1000")


@pytest.fixture
def durable() -> Iterator[ConsulServer]:
    with ConsulServer(dev=False) as server:
        yield server


async def until_gone(pid: int) -> None:
    async def gone() -> bool:
        return start_ticks(pid) is None

    await eventually(gone, what=f"end of process {pid}")


async def until_contact_lost(running: Running) -> None:
    async def lost() -> bool:
        return bool(running.agent.lacks())

    await eventually(lost, what="loss of presence")


# -- restarts of the agent ---------------------------------------------------------------------
@pytest.mark.parametrize("how", ["close", "crash"])
async def test_r27_a_restarted_agent_adopts_what_runs(rig: Agents, how: str) -> None:
    running = await rig.agent()
    await rig.want(web())
    before = await rig.until(lambda r: r.health.state == "passing")
    await getattr(running, how)()
    assert alive(before)
    index = (await rig.client.read(rig.keys.reality("n1", "web"))).modify_index  # type: ignore[union-attr]
    again = await rig.agent()
    entry = await rig.client.read(rig.keys.reality("n1", "web"))
    assert entry is not None
    assert alive(before)
    await rig.want(SLEEPER, instance="other")
    await rig.until_running(SLEEPER, instance="other")
    after = (await rig.realities())["web"]
    assert after == before, "health, start, ports and restarts are kept"
    assert entry.modify_index == index, "nothing changed, so nothing was written"
    kill(before)
    await rig.until(lambda r: r.restarts == 1 and r.health.state == "passing")
    assert again.agent.pods.get("web") is not None


async def test_r26_an_end_that_happened_while_the_agent_was_away_is_reported(rig: Agents) -> None:
    running = await rig.agent()
    manifest = shell("while [ ! -e go ]; do sleep 0.02; done; rm go; exit 6")
    await rig.want(manifest)
    before = await rig.until_running(manifest)
    await running.crash()
    (running.state.work("web") / "go").touch()
    await until_gone(before.pid)
    await rig.agent()
    after = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert [end.code for end in after.exits] == [6]


async def test_r26_a_workload_that_lost_its_shim_is_stopped_before_another_starts(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    identity = running.state.identity("web")
    assert identity is not None
    await running.crash()
    os.kill(identity.shim, signal.SIGKILL)
    await until_gone(identity.shim)
    assert alive(before)
    await rig.agent()
    after = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert not alive(before)
    assert [end.code for end in after.exits] == [-9]


async def test_r26_a_process_is_adopted_even_if_its_record_is_damaged(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(web())
    before = await rig.until(lambda r: r.health.state == "passing")
    await running.crash()
    (running.state.directory("web") / "instance.json").write_text("{")
    await rig.agent()
    await rig.want(web(), owner="rc2")
    after = await rig.until(lambda r: r.owner == "rc2" and r.health.state == "passing")
    assert (after.pid, after.started, after.ports) == (before.pid, before.started, before.ports)


async def test_r26_a_process_whose_shims_record_is_lost_is_adopted_by_the_agents_own(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    await running.crash()
    (running.state.directory("web") / "process.json").unlink()
    await rig.agent()
    index = await rig.want(SLEEPER, owner="rc2")
    after = await rig.until(lambda r: r.intent == index)
    assert (after.pid, after.started, after.restarts, after.phase) == (
        before.pid,
        before.started,
        0,
        "running",
    )
    await rig.unwant()
    await rig.until_gone()
    assert not alive(before)


@pytest.mark.parametrize("proof", [True, False])
async def test_r16_an_agent_that_lost_its_clusters_id_knows_the_cluster_by_an_intent_that_it_acted_on(
    rig: Agents, proof: bool
) -> None:
    first = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    await first.crash()
    (rig.root / "n1" / "agent.json").unlink()
    if not proof:
        await rig.want(SLEEPER, owner="rc2")  # at another index: another cluster might say it
    again = await rig.agent(wait=False)

    async def decided() -> bool:
        return not again.agent.lacks() if proof else again.agent._link._said == "foreign_cluster"

    await eventually(decided, what="the agent's word about the cluster")
    assert alive(before)
    assert [pod.pid for pod in again.agent.reality().values()] == [before.pid]


async def test_a_pod_unwanted_while_the_agent_was_away_is_stopped(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    await running.close()
    await rig.unwant()
    await rig.agent()
    await rig.until_gone()
    assert not alive(before)


async def test_stop_workloads_on_exit_takes_them_along(rig: Agents) -> None:
    running = await rig.agent(stop_workloads_on_exit=True)
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    identity = running.state.identity("web")
    await running.close()
    assert not alive(before)
    assert identity is not None
    assert start_ticks(identity.shim) is None


# -- the store ---------------------------------------------------------------------------------
async def test_r20_a_proven_empty_intent_stops_and_a_missing_sentinel_does_not(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    sentinel = rig.keys.sentinel(rig.keys.intents("n1"))
    entry = await rig.client.read(sentinel)
    assert entry is not None
    await rig.client.delete(sentinel)
    await rig.unwant()
    await _until_read(rig, running)
    told = await eventually(lambda: _closed(rig), what="the agent tells farms to place nothing there")
    assert told == "its intents are not proven (R20): farmctl node register n1"
    await rig.client.put(sentinel, registration.sentinel_value("another cluster"))
    await _until_read(rig, running)
    await rig.want(shell("exit 1"))
    await _until_read(rig, running)
    await rig.unwant()
    await rig.want(SLEEPER)
    await rig.client.put(sentinel, entry.value)
    await rig.want(SLEEPER, instance="other")
    await rig.until_running(SLEEPER, instance="other")
    after = (await rig.realities())["web"]
    assert (after.pid, after.started, after.restarts) == (before.pid, before.started, 0)
    await rig.unwant()
    await rig.unwant(instance="other")
    await rig.until_gone()
    assert not alive(before)
    await eventually(lambda: _opened(rig), what="the agent tells farms that it starts pods again")


async def test_r20_an_agent_that_comes_back_to_unproven_intents_says_so_from_the_first(
    rig: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Farms place pods within milliseconds, and no farm moves those that wait there."""
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    await running.close()
    await rig.client.delete(rig.keys.sentinel(rig.keys.intents("n1")))
    monkeypatch.setattr(Intents, "run", lambda _: asyncio.Event().wait())
    await rig.agent()
    assert await _closed(rig) == "its intents are not proven (R20): farmctl node register n1"
    assert alive(before)


async def _opened(rig: Agents) -> bool:
    return not await _closed(rig)


async def _closed(rig: Agents) -> str:
    """What the agent tells farms of why it starts no pod."""
    found = await rig.presence()
    assert found is not None
    return found[0].closed


async def test_r27_a_wiped_and_restarted_store_stops_nothing(durable: ConsulServer, tmp_path: Path) -> None:
    async with agents_on(durable.address, tmp_path) as rig:
        running = await rig.agent()
        await rig.want(web())
        before = await rig.until(lambda r: r.health.state == "passing")
        await asyncio.to_thread(durable.stop)
        kill(before)
        await eventually(lambda: _restarted(running, 1), what="a restart without the store")
        during = running.agent.reality()["web"]
        await running.crash()
        again = await rig.agent(wait=False)
        await eventually(lambda: _knows(again, "web"), what="adoption without the store")
        kill(during)
        await eventually(lambda: _restarted(again, 2), what="a restart by an agent that never saw the store")
        last = again.agent.reality()["web"]
        durable.wipe()
        await asyncio.to_thread(durable.start)
        await rig.register()
        assert rig.id
        # A new cluster: its answers count for nothing, and nothing is registered or written there.
        foreign = await rig.client.keys(rig.keys.intents("n1"))
        assert foreign.items == []
        await registration.register_node(rig.client, rig.keys, "n1")
        await _several_looks(again)
        assert alive(last)
        assert await rig.realities() == {}
        assert await rig.presence() is None


async def test_r27_reality_is_brought_up_to_date_after_an_outage(
    durable: ConsulServer, tmp_path: Path
) -> None:
    async with agents_on(durable.address, tmp_path) as rig:
        await rig.agent()
        await rig.want(web())
        before = await rig.until(lambda r: r.health.state == "passing")
        await asyncio.to_thread(durable.stop)
        kill(before)
        await until_gone(before.pid)
        await asyncio.to_thread(durable.start)
        after = await rig.until(lambda r: r.restarts == 1 and r.health.state == "passing")
        assert [end.code for end in after.exits] == [-9]
        await rig.unwant()
        await rig.until_gone()


async def test_r27_stop_after_is_the_one_exception(durable: ConsulServer, tmp_path: Path) -> None:
    async with agents_on(durable.address, tmp_path) as rig:
        running = await rig.agent()
        isolated = shell("exec sleep 1000", stop_after=3.0)
        await rig.want(isolated, instance="isolated")
        await rig.want(SLEEPER, instance="steady")
        going = await rig.until_running(isolated, instance="isolated")
        staying = await rig.until_running(SLEEPER, instance="steady")
        await asyncio.to_thread(durable.pause)
        await until_gone(going.pid)
        assert alive(staying)

        async def told() -> bool:
            return "stop_after" in running.agent.reality()["isolated"].reason

        await eventually(told, what="the reason of an end that its shim may have seen first")
        durable.resume()
        back = await rig.until(lambda r: r.phase == "running" and r.pid != going.pid, instance="isolated")
        assert alive(back)
        assert alive(staying)


async def _restarted(running: Running, times: int) -> bool:
    found = running.agent.reality().get("web")
    return (
        found is not None
        and found.restarts == times
        and found.phase == "running"
        and found.health.state == "passing"
    )


async def _knows(running: Running, instance: str) -> bool:
    pod = running.agent.pods.get(instance)
    return pod is not None and pod.identity is not None


async def _until_read(rig: Agents, running: Running) -> None:
    """Until the agent has read, and thought about, what its intents are now."""
    intents = running.agent._intents

    async def read() -> bool:
        now = await rig.client.list(rig.keys.intents("n1"), mode="consistent")
        page = intents._page
        return page is not None and page.index >= now.index and not intents._fresh.is_set()

    await eventually(read, what="an answer to the agent")


async def _several_looks(running: Running) -> None:
    """Until the agent has tried and refused to join at least once more."""
    assert running.agent.lacks()
    link = running.agent._link

    async def foreign() -> bool:
        return link._said == "foreign_cluster"

    await eventually(foreign, what="refusal of the foreign cluster")
