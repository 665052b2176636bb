"""What outlives what: workloads the agent and the store, presence a restart (R20, R21, R26, R27)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web as http_web

from farmd.agent.errors import NodeTaken, StateLocked
from farmd.agent.http import add_routes
from store import codec, presence, registration
from store.nodes import Agent as Presence
from store.presence import this_process
from store.process import start_ticks
from store.sessions import Session
from tests.agents import CLOCK, Agents, Running, agents_on, alive, kill, sha_of, shell, web
from tests.fleet import eventually
from tests.ports import free_ports
from tests.servers import ConsulServer

SLEEPER = shell("exec sleep 1000")


@pytest.fixture(scope="module")
def consul() -> Iterator[ConsulServer]:
    with ConsulServer(dev=True) as server:
        yield server


@pytest.fixture
async def rig(consul: ConsulServer, tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_on(consul.address, tmp_path) as made:
        yield made


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
        return not running.agent.present

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
        return again.agent.present if proof else again.agent._link._said == "foreign_cluster"

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
        assert "stop_after" in running.agent.reality()["isolated"].reason
        durable.resume()
        back = await rig.until(lambda r: r.phase == "running" and r.pid != going.pid, instance="isolated")
        assert alive(back)
        assert alive(staying)


# -- presence ----------------------------------------------------------------------------------
async def test_r21_the_session_outlives_a_restart(rig: Agents) -> None:
    running = await rig.agent(labels={"rack": "r1", "os": "mine"}, address="10.0.0.1:7717")
    first = await rig.presence()
    assert first is not None
    record, session = first
    assert record.node == "n1"
    assert record.labels["rack"] == "r1"
    assert record.labels["os"] == "mine"
    assert record.labels.keys() >= {"arch", "kernel", "hostname"}
    assert record.capacity["cpu"] >= 1
    assert record.capacity["memory"] > 1e6
    assert record.address == "10.0.0.1:7717"
    await running.close()
    assert await rig.presence() == first
    await rig.agent()
    second = await rig.presence()
    assert second is not None
    assert second[1] == session
    assert second[0].since > record.since


async def test_r21_a_lost_session_is_replaced_and_presence_taken_again(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    first = await rig.presence()
    assert first is not None
    await rig.client.destroy_session(first[1])

    async def back() -> bool:
        found = await rig.presence()
        return found is not None and found[1] != first[1] and running.agent.present

    await eventually(back, what="a new presence")
    assert alive(before)
    await rig.want(SLEEPER, instance="other")
    await rig.until_running(SLEEPER, instance="other")


async def test_r1_a_presence_that_was_deleted_or_overwritten_is_announced_again(
    rig: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.0)
    await rig.agent()
    key = rig.keys.agent("n1")
    before = await rig.client.read(key)
    assert before is not None

    async def back() -> bool:
        found = await rig.client.read(key)
        return found is not None and (found.value, found.session) == (before.value, before.session)

    await rig.client.delete(key)
    await eventually(back, what="the deleted presence")
    await rig.client.put(key, b"{")
    await eventually(back, what="the overwritten presence")


async def test_registration_creates_the_node_once_and_keeps_what_people_wrote(rig: Agents) -> None:
    running = await rig.agent()
    entry = await rig.client.read(rig.keys.node("n1"))
    assert entry is not None
    await rig.client.put(rig.keys.node("n1"), b'{"cordoned":true}')
    await running.close()
    await rig.agent()
    entry = await rig.client.read(rig.keys.node("n1"))
    assert entry is not None
    assert entry.value == b'{"cordoned":true}'
    assert await rig.client.read(rig.keys.sentinel(rig.keys.intents("n1"))) is not None


async def test_a_second_agent_in_the_same_directory_is_refused(rig: Agents) -> None:
    await rig.agent()
    with pytest.raises(StateLocked, match="in use by another agent"):
        await rig.agent()


async def test_a_second_agent_under_the_same_name_is_refused(rig: Agents) -> None:
    session = await Session.open(rig.client, CLOCK, name="another agent", ttl=600)
    live = this_process() | {"pid": os.getppid(), "ticks": start_ticks(os.getppid())}
    first = Presence(node="n1", version="0", host="here", since=CLOCK.now(), **live)
    await rig.client.put(rig.keys.agent("n1"), codec.encode(first), acquire=session.id)
    with pytest.raises(NodeTaken, match=rf"node n1: a live agent bears this name .*pid {os.getppid()}"):
        await rig.agent()
    assert await rig.presence() == (first, session.id)


async def test_the_presence_of_a_dead_process_of_this_boot_is_taken_over(rig: Agents) -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    stale = await Session.open(rig.client, CLOCK, name="stale", ttl=600)
    dead = Presence(node="n1", version="0", host="here", boot=_boot(), pid=process.pid, since=CLOCK.now())
    await rig.client.put(rig.keys.agent("n1"), codec.encode(dead), acquire=stale.id)
    await rig.agent()
    found = await rig.presence()
    assert found is not None
    assert found[0].pid == os.getpid()
    assert found[1] != stale.id


async def test_w19_a_node_whose_name_begins_like_another_is_another(rig: Agents) -> None:
    await rig.agent("n1")
    await rig.agent("n10")
    await rig.want(SLEEPER, node="n10")
    await rig.until_running(SLEEPER, node="n10")
    await rig.want(SLEEPER, node="n1", instance="mine")
    await rig.until_running(SLEEPER, instance="mine")
    assert set(await rig.realities("n1")) == {"mine"}
    assert set(await rig.realities("n10")) == {"web"}


# -- HTTP --------------------------------------------------------------------------------------
async def test_pods_and_logs_over_http(rig: Agents) -> None:
    running = await rig.agent()
    talker = shell(
        "for i in 1 2 3; do echo line $i; done; while [ ! -e go ]; do sleep 0.02; done; echo more;"
        " exec sleep 1000"
    )
    await rig.want(talker)
    await rig.until_running(talker)
    async with served(running) as http:

        async def text(path: str) -> tuple[int, str]:
            async with http.get(path) as answer:
                return answer.status, await answer.text()

        async def all_lines() -> bool:
            return (await text("/v1/pods/web/logs"))[1] == "line 1\nline 2\nline 3\n"

        await eventually(all_lines, what="three lines")
        async with http.get("/v1/pods") as answer:
            body = await answer.json()
        assert body["node"] == "n1"
        assert body["pods"]["web"]["manifest"] == sha_of(talker)
        assert await text("/v1/pods/web/logs?lines=1") == (200, "line 3\n")
        assert (await text("/v1/pods/web/logs?lines=-1"))[0] == 400
        assert (await text("/v1/pods/web/logs?follow=maybe"))[0] == 400
        assert (await text("/v1/pods/other/logs"))[0] == 404
        assert (await text("/v1/pods/..%2F..%2Fetc/logs"))[0] == 404
        async with http.get("/v1/pods/web/logs?lines=1&follow=1") as answer:
            assert await answer.content.readline() == b"line 3\n"
            (running.state.work("web") / "go").touch()
            assert await answer.content.readline() == b"more\n"
            await rig.unwant()
            assert await answer.content.read() == b""


async def test_output_is_told_by_start_and_time_over_http(rig: Agents) -> None:
    running = await rig.agent()
    twice = shell("if [ -e again ]; then echo second; exec sleep 1000; fi; touch again; echo first; exit 1")
    await rig.want(twice)
    async with served(running) as http:

        async def text(query: str) -> tuple[int, str]:
            async with http.get(f"/v1/pods/web/logs?{query}") as answer:
                return answer.status, await answer.text()

        async def both() -> bool:
            return await text("lines=9") == (200, "first\nsecond\n")

        await rig.until_running(twice)
        await eventually(both, what="the output of two starts")
        assert await text("previous=1") == (200, "first\n")
        assert await text("since=3600&lines=1") == (200, "second\n")
        status, shown = await text("timestamps=1")
        assert status == 200
        assert [line.partition("Z ")[2] for line in shown.splitlines()] == ["first", "second"]
        assert (await text("since=soon"))[0] == 400
        assert (await text("previous=1&follow=1"))[0] == 400
        async with http.get("/v1/pods/web/logs?lines=1&follow=1&timestamps=1") as answer:
            assert answer.headers["Farmd-Log-Times"] == "1"
            assert (await answer.content.readline()).endswith(b"Z second\n")


async def test_the_output_of_a_removed_pod_is_told_for_a_while_also_by_the_next_agent(rig: Agents) -> None:
    first = await rig.agent()
    waits = "while :; do sleep 0.05; done"
    await rig.want(shell(f"exec 2>/dev/null; trap 'echo bye; exit 3' TERM; echo up; {waits}"))

    async def shown(running: Running, query: str = "") -> tuple[int, str, bool]:
        async with served(running) as http, http.get(f"/v1/pods/web/logs?{query}") as answer:
            return answer.status, await answer.text(), "Farmd-Log-Gone" in answer.headers

    async def up() -> bool:
        return await shown(first) == (200, "up\n", False)

    await eventually(up, what="the output")
    await rig.unwant()
    await rig.until_gone()
    assert await shown(first) == (200, "up\nbye\n", True)
    await first.close()
    second = await rig.agent()
    for query in ("", "follow=1", "since=60"):
        assert await shown(second, query) == (200, "up\nbye\n", True)
    assert (await shown(second, "previous=1"))[0] == 404
    await rig.want(SLEEPER)
    await rig.until_running(SLEEPER)
    assert await shown(second) == (200, "", False)


@asynccontextmanager
async def served(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    """The agent's HTTP routes."""
    app = http_web.Application()
    add_routes(app, running.agent, CLOCK)
    runner = http_web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    port = free_ports(1)[0]
    await http_web.TCPSite(runner, "127.0.0.1", port).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        yield http
    await runner.cleanup()


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
    assert not running.agent.present
    link = running.agent._link

    async def foreign() -> bool:
        return link._said == "foreign_cluster"

    await eventually(foreign, what="refusal of the foreign cluster")


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
