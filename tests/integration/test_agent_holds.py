"""R29: pods on hold, their ports, their variables and their peers, on real Consul."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from store.manifests import Port, Restart
from store.peers import Peer
from tests.agents import AgentProcess, Agents, alive, kill, logged, shell

TELLS = "echo rank $FARMD_RANK on $FARMD_PORT_JOB; exec sleep 1000"


async def test_an_agent_says_that_it_knows_these_rules(rig: Agents) -> None:
    await rig.agent()
    found = await rig.presence()
    assert found is not None
    assert "jobs.1" in found[0].features


async def test_a_restarted_agent_keeps_the_ports_of_what_is_held_and_starts_it_only_when_it_is_released(
    rig: Agents,
) -> None:
    manifest = shell(TELLS, ports={"job": Port(), "other": Port()})
    first = await rig.agent()
    await rig.want(manifest, hold=True)
    held = await rig.until(lambda r: r.phase == "held")
    await first.crash()
    again = await rig.agent()
    index = await rig.want(manifest, hold=True, vars={"FARMD_RANK": "1"}, owner="rc2")
    await rig.until(lambda r: r.phase == "held" and r.intent == index and r.ports == held.ports)
    assert not (again.state.logs("web") / "current.log").exists()
    await rig.want(manifest, vars={"FARMD_RANK": "2"}, owner="rc2")
    assert await logged(again, "rank") == f"rank 2 on {held.ports['job']}\n"
    assert (await rig.until(lambda r: r.phase == "running")).ports == held.ports


async def test_no_start_takes_another_port_than_the_one_that_was_told(rig: Agents) -> None:
    manifest = shell(TELLS, ports={"job": Port()})
    await rig.agent()
    await rig.want(manifest, hold=True)
    port = (await rig.until(lambda r: r.phase == "held")).ports["job"]
    with socket.socket() as other:
        # What an earlier test's pod served there may not have left the kernel's list of connections yet.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", port))
        other.listen()
        await rig.want(manifest)
        failed = await rig.until(lambda r: r.phase == "failed")
        assert failed.reason == f"ports.job: port {port}/tcp is in use on this node"
    started = await rig.until(lambda r: r.phase == "running")
    kill(started)
    assert (await rig.until(lambda r: r.restarts == 1 and r.phase == "running")).ports == {"job": port}


async def test_a_hold_and_new_variables_touch_nothing_that_runs(rig: Agents) -> None:
    manifest = shell(TELLS, ports={"job": Port()})
    running = await rig.agent()
    await rig.want(manifest, vars={"FARMD_RANK": "1"})
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(manifest, vars={"FARMD_RANK": "2"}, hold=True)
    after = await rig.until(lambda r: r.intent == index)
    assert (after.phase, after.pid, alive(after)) == ("running", before.pid, True)
    index = await rig.want(manifest, vars={"FARMD_RANK": "3"})
    await rig.until(lambda r: r.intent == index)
    kill(before)
    await logged(running, "rank 3")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"vars": {"LD_PRELOAD": "x"}},
            "vars: found 'LD_PRELOAD', expected the name of a job's variable such as FARMD_RANK",
        ),
        ({"peers": "a" * 64}, "peers aaaaaaaaaaaa: not in the store"),
        ({"peers": "../../etc/passwd"}, "peers: found '../../etc/passwd', expected 64 hex digits"),
    ],
)
async def test_an_intent_that_cannot_be_used_starts_nothing_and_says_why(
    rig: Agents, fields: dict[str, Any], reason: str
) -> None:
    await rig.agent()
    index = await rig.want(shell(TELLS, ports={"job": Port()}), **fields)
    told = await rig.until(lambda r: r.refused == index)
    assert (told.phase, told.pid, told.reason) == ("failed", 0, reason)


async def test_r27_without_the_store_it_starts_again_with_its_variables_and_peers(rig: Agents) -> None:
    """The store's answers are not needed for a restart in place, also not by the next agent."""
    script = 'echo "rank $FARMD_RANK of $(cat $FARMD_HOSTFILE)"; exec sleep 1000'
    first = await rig.agent()
    peers = await rig.tell_peers(Peer("worker", 0, 0, "10.0.0.7"))
    await rig.want(shell(script, restart=Restart(initial=0.05)), vars={"FARMD_RANK": "0"}, peers=peers)
    before = await rig.until(lambda r: r.phase == "running")
    await logged(first, "rank 0")
    await first.crash()
    kill(before)
    (first.state.logs("web") / "current.log").unlink()
    again = await rig.agent(wait=False, consul="127.0.0.1:1")
    assert await logged(again, "rank") == "rank 0 of 10.0.0.7 slots=1\n"


async def test_r27_killing_the_agent_keeps_what_is_held_and_what_is_done(rig: Agents) -> None:
    ends = shell("echo run >> runs; exit 3", restart=Restart(policy="never"), ports={"job": Port()})
    async with AgentProcess(rig):
        await rig.want(ends, instance="done")
        await rig.want(ends, instance="held", hold=True)
        done = await rig.until(lambda r: r.phase == "done", instance="done")
        held = await rig.until(lambda r: r.phase == "held", instance="held")
    async with AgentProcess(rig):
        index = await rig.want(ends, instance="done", owner="other")
        after = await rig.until(lambda r: r.intent == index, instance="done")
        assert (after.phase, after.exits, after.ports) == ("done", done.exits, done.ports)
        assert (await rig.realities())["held"] == held
        work = rig.root / "n1" / "instances"
        assert (work / "done/work/runs").read_text() == "run\n"
        assert not (work / "held/work/runs").exists()
