"""An agent's presence, and who may bear its node's name (R1, R21)."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from farmd.agent.errors import NodeTaken, StateLocked
from store import codec, presence
from store.nodes import Agent as Presence
from store.presence import start_ticks, this_process
from store.sessions import Session
from tests.agents import CLOCK, Agents, alive, shell
from tests.fleet import eventually

SLEEPER = shell("exec sleep 1000")


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
    await rig.agent(address="10.0.0.1:7717")
    second = await rig.presence()
    assert second is not None
    assert second[1] == session
    assert second[0].since > record.since


async def test_an_agent_tells_what_it_cannot_remove_until_it_is_gone(rig: Agents) -> None:
    stuck = rig.root / "n1" / "trash" / "web.0"
    stuck.mkdir(parents=True)
    (stuck / "locked").touch()
    subprocess.run(["chattr", "+i", stuck / "locked"], check=True)
    try:
        running = await rig.agent()

        async def left() -> dict[str, str]:
            found = await rig.presence()
            assert found is not None
            return found[0].left

        await eventually(left, what="what it cannot remove")
        assert await left() == {str(stuck): "it is immutable, or belongs to another user"}
    finally:
        subprocess.run(["chattr", "-i", stuck / "locked"], check=True)
    running.state.empty_trash()

    async def gone() -> bool:
        return not await left()

    await eventually(gone, what="a presence with nothing left")


async def test_r21_a_lost_session_is_replaced_and_presence_taken_again(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(SLEEPER)
    before = await rig.until_running(SLEEPER)
    first = await rig.presence()
    assert first is not None
    await rig.client.destroy_session(first[1])

    async def back() -> bool:
        found = await rig.presence()
        return found is not None and found[1] != first[1] and not running.agent.lacks()

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
    await rig.client.delete(key)
    await rig.client.put(key, before.value.replace(b"n1", b"n2"))  # by somebody without a session
    forged = await rig.client.read(key)
    assert forged is not None
    await eventually(back, what="the presence that somebody else created")
    found = await rig.client.read(key)
    assert found is not None
    assert found.create_index > forged.create_index, "else farms would keep what the other one said first"


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
    with pytest.raises(
        NodeTaken, match=rf"node n1: a running agent already uses this name .*pid {os.getppid()}"
    ):
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


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_an_agent_with_another_address_has_another_session_and_else_goes_on_with_its_own(
    rig: Agents,
) -> None:
    """Farms doubt an address that changes within a session."""

    async def announced(address: str) -> tuple[str, int]:
        running = await rig.agent(address=address)
        entry = await rig.client.read(rig.keys.agent("n1"), mode="consistent")
        assert entry is not None
        assert codec.decode(Presence, entry.value, entry.key).address == address
        await running.crash()
        return entry.session, entry.create_index

    first = await announced("http://10.0.0.1:7521")
    assert await announced("http://10.0.0.1:7522") == first
    second = await announced("http://10.0.0.2:7521")
    assert second[0] != first[0]
    assert second[1] > first[1]
    assert await announced("http://10.0.0.2:7521") == second
