"""Intent to reality with a real Consul and real processes (R20, R22, R26)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store import manifests, operations
from store.containers import Limits
from store.manifests import HealthCheck, Port, Restart, Stop
from tests.agents import Agents, Running, alive, kill, sha_of, shell, web
from tests.fleet import eventually


async def test_a_pod_starts_is_healthy_answers_and_stops_when_unwanted(rig: Agents) -> None:
    await rig.agent()
    index = await rig.want(web())
    reality = await rig.until(lambda r: r.health.state == "passing")
    assert (reality.manifest, reality.owner, reality.intent) == (sha_of(web()), "rc1", index)
    assert reality.phase == "running"
    assert alive(reality)
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{reality.ports['http']}/") as answer,
    ):
        assert await answer.text() == "web"
    await rig.unwant()
    await rig.until_gone()
    assert not alive(reality)
    assert list((rig.root / "n1" / "instances").iterdir()) == []


async def test_health_turns_critical_and_back(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(web(health=HealthCheck(type="http", port="http", interval=0.1, timeout=30, failures=60)))
    first = await rig.until(lambda r: r.health.state == "passing")
    (running.state.work("web") / "sick").touch()
    sick = await rig.until(lambda r: r.health.state == "critical")
    assert sick.health.reason == "HTTP 500"
    assert sick.health.since > first.health.since
    assert sick.started == first.started
    (running.state.work("web") / "sick").unlink()
    await rig.until(lambda r: r.health.state == "passing")


async def test_a_killed_process_is_restarted_and_its_end_is_in_reality(rig: Agents) -> None:
    await rig.agent()
    await rig.want(web())
    first = await rig.until(lambda r: r.health.state == "passing")
    kill(first)
    second = await rig.until(lambda r: r.restarts == 1 and r.health.state == "passing")
    assert [end.code for end in second.exits] == [-9]
    assert second.pid != first.pid
    assert second.started > first.started
    assert second.ports == first.ports
    assert second.intent == first.intent


async def test_a_crashing_pod_backs_off_with_its_reason(rig: Agents) -> None:
    await rig.agent()
    await rig.want(shell("exit 3"))
    reality = await rig.until(lambda r: len(r.exits) >= 3)
    assert {end.code for end in reality.exits} == {3}
    backing = await rig.until(lambda r: r.phase == "backoff")
    assert backing.reason.startswith("exited with code 3")
    gaps = [later.at - sooner.at for sooner, later in zip(reality.exits, reality.exits[1:], strict=False)]
    assert all(gap >= 0.05 for gap in gaps)


async def test_another_manifest_replaces_in_place_and_keeps_the_ports(rig: Agents) -> None:
    await rig.agent()
    old, new = web(), web(env={"V": "2"})
    await rig.want(old)
    before = await rig.until(lambda r: r.health.state == "passing")
    index = await rig.want(new)
    after = await rig.until(lambda r: r.manifest == sha_of(new) and r.health.state == "passing")
    assert not alive(before)
    assert after.ports == before.ports
    assert (after.intent, after.restarts) == (index, 0)


async def test_a_changed_owner_restarts_nothing(rig: Agents) -> None:
    await rig.agent()
    await rig.want(shell("exec sleep 1000"))
    before = await rig.until_running(shell("exec sleep 1000"))
    index = await rig.want(shell("exec sleep 1000"), owner="rc2")
    after = await rig.until(lambda r: r.owner == "rc2")
    assert (after.pid, after.started, after.intent) == (before.pid, before.started, index)


async def test_a_stop_is_graceful_first_and_reaches_the_whole_group(rig: Agents) -> None:
    running = await rig.agent()
    polite = shell(
        "trap 'echo polite > stopped; exit 0' TERM; echo up; sleep 1005 & while :; do sleep 0.02; done"
    )
    await rig.want(polite)
    await rig.until_running(polite)
    await until_logged(running, "up")
    other = shell("exec sleep 1000")
    await rig.want(other)
    reality = await rig.until_running(other)
    assert reality.exits[-1].code == 0
    assert (running.state.work("web") / "stopped").read_text() == "polite\n"


async def test_a_stubborn_process_is_killed_after_its_grace(rig: Agents) -> None:
    running = await rig.agent()
    stubborn = shell("trap '' TERM; echo up; while :; do sleep 0.02; done", stop=Stop(grace=0.3))
    await rig.want(stubborn)
    before = await rig.until_running(stubborn)
    await until_logged(running, "up")
    await rig.unwant()
    await rig.until_gone()
    assert not alive(before)


async def test_what_cannot_start_is_failed_with_its_reason_and_tried_again(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    program = tmp_path / "later"
    manifest = shell("", command=[str(program)])
    await rig.want(manifest)
    failed = await rig.until(lambda r: r.phase == "failed")
    assert failed.reason == f"command {program}: No such file or directory"
    assert failed.health.state == "unknown"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    await rig.until_running(manifest)


async def test_a_user_that_does_not_exist_is_refused_with_a_reason(rig: Agents) -> None:
    await rig.agent()
    await rig.want(shell("exec sleep 1000", user="nobody-here"))
    reality = await rig.until(lambda r: r.phase == "failed")
    assert "user: found 'nobody-here'" in reality.reason


async def test_r20_bad_records_concern_their_own_instance_alone(rig: Agents) -> None:
    await rig.agent()
    good = shell("exec sleep 1000")
    await rig.client.put(rig.keys.intent("n1", "broken"), b"<html>")
    await rig.client.put(rig.keys.intent("n1", "half"), b'{"manifest":5,"owner":"x"}')
    await rig.client.put(rig.keys.intent("n1", "nowhere"), b'{"manifest":"%s","owner":"x"}' % (b"d" * 64))
    await rig.client.put(rig.keys.intent("n1", "path"), b'{"manifest":"../../etc/passwd","owner":"x"}')
    await rig.client.put(rig.keys.intents("n1") + "a/b", b"{}")
    await rig.client.transaction([operations.put(rig.keys.intents("n1") + "..", b"{}")])
    await rig.want(good, instance="good")
    await rig.until_running(good, instance="good")
    reasons = {
        "broken": "malformed",
        "half": "manifest: found 5, expected text",
        "nowhere": "not in the store",
        "path": "expected 64 hex digits",
    }
    for instance, reason in reasons.items():
        failed = await rig.until(lambda r: r.phase == "failed", instance=instance)
        assert reason in failed.reason
    assert set(await rig.realities()) == {"good", *reasons}


async def test_r20_a_record_broken_by_hand_leaves_its_pod_running(rig: Agents) -> None:
    await rig.agent()
    manifest = shell("exec sleep 1000")
    await rig.want(manifest)
    before = await rig.until_running(manifest)
    await rig.client.put(rig.keys.intent("n1", "web"), b"not json")
    broken = await rig.until(lambda r: "cannot act on intent" in r.reason)
    assert (broken.pid, broken.phase, broken.manifest) == (before.pid, "running", before.manifest)
    kill(before)
    again = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert again.manifest == before.manifest


@pytest.mark.parametrize("owner", ["rc1", "rc2"])
async def test_a_pod_that_is_created_again_while_the_former_one_stops_begins_at_no_restarts(
    rig: Agents, owner: str
) -> None:
    await rig.agent()
    slow = shell("trap 'while ! test -e go; do sleep 0.05; done; exit' TERM; while :; do sleep 0.05; done")
    await rig.want(slow)
    kill(await rig.until_running(slow))
    former = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    await rig.unwant()
    await rig.until(lambda r: r.phase == "stopping")
    index = await rig.want(slow, owner=owner)
    await rig.until(lambda r: r.intent == index)
    (rig.running[0].state.work("web") / "go").touch()
    again = await rig.until(lambda r: r.phase == "running" and r.pid not in (0, former.pid))
    assert (again.owner, again.restarts, again.exits) == (owner, 0, [])
    (rig.running[0].state.work("web") / "go").unlink()
    kill(again)
    assert (await rig.until(lambda r: r.restarts == 1)).owner == owner


async def test_another_owners_pod_that_takes_over_a_process_begins_at_no_restarts(rig: Agents) -> None:
    await rig.agent()
    manifest = shell("exec sleep 1000")
    await rig.want(manifest)
    kill(await rig.until_running(manifest))
    former = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    await rig.want(manifest, owner="rc2")
    taken = await rig.until(lambda r: r.owner == "rc2")
    assert (taken.pid, taken.restarts, taken.exits) == (former.pid, 0, [])


async def test_a_manifest_that_comes_late_is_picked_up(rig: Agents) -> None:
    await rig.agent()
    manifest = shell("exec sleep 1000")
    body = manifests.canonical(manifest)
    key = rig.keys.manifest(manifests.digest(body))
    await rig.want(manifest)
    await rig.client.delete(key)
    await rig.unwant()
    await rig.client.put(
        rig.keys.intent("n1", "late"), b'{"manifest":"%s","owner":"x"}' % manifests.digest(body).encode()
    )
    await rig.until(lambda r: r.phase in {"failed", "running"}, instance="late")
    await rig.client.put(key, body)
    await rig.until_running(manifest, instance="late")


async def test_a_forged_manifest_is_not_run(rig: Agents, tmp_path: Path) -> None:
    await rig.agent()
    honest, forged = shell("exec sleep 1000"), shell(f"touch {tmp_path}/forged")
    await rig.client.put(rig.keys.manifest(sha_of(honest)), manifests.canonical(forged))
    await rig.client.put(
        rig.keys.intent("n1", "web"), b'{"manifest":"%s","owner":"x"}' % sha_of(honest).encode()
    )
    reality = await rig.until(lambda r: r.phase == "failed")
    assert "found a body with digest" in reality.reason
    assert not (tmp_path / "forged").exists()


async def test_a_fixed_port_in_use_is_a_reason_and_starts_when_free(rig: Agents) -> None:
    await rig.agent()
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    manifest = web(ports={"http": Port(port)})
    await rig.want(manifest)
    failed = await rig.until(lambda r: r.phase == "failed")
    assert failed.reason == f"ports.http: port {port}/tcp is in use on this node"
    server.close()
    await server.wait_closed()
    await rig.until(lambda r: r.health.state == "passing")


@pytest.mark.parametrize(
    ("policy", "code", "health"),
    [("never", 0, "passing"), ("never", 3, "critical"), ("on-failure", 0, "passing")],
)
async def test_a_pod_whose_policy_asks_for_no_other_start_is_done_until_a_restart_is_asked_for(
    rig: Agents, policy: Any, code: int, health: str
) -> None:
    first = await rig.agent()
    restart = Restart(initial=0.05, maximum=0.2, policy=policy)
    manifest = shell(f"echo run >> runs; exit {code}", restart=restart)
    await rig.want(manifest)
    done = await rig.until(lambda r: r.phase == "done")
    assert (done.health.state, [end.code for end in done.exits]) == (health, [code])
    await first.close()
    again = await rig.agent()
    runs = again.state.work("web") / "runs"
    index = await rig.want(manifest, owner="rc2")
    taken = await rig.until(lambda r: r.intent == index)
    assert (taken.phase, runs.read_text()) == ("done", "run\n")
    index = await rig.want(manifest, owner="rc2", restart=1)
    rerun = await rig.until(lambda r: r.restart == 1 and r.phase == "done")
    assert (rerun.started > done.started, runs.read_text()) == (True, "run\nrun\n")


async def test_a_pod_that_is_restarted_on_failure_alone_backs_off_after_one(rig: Agents) -> None:
    await rig.agent()
    script = "test -e twice && exit 0; test -e once && touch twice; touch once; exit 4"
    await rig.want(shell(script, restart=Restart(initial=0.05, maximum=0.2, policy="on-failure")))
    done = await rig.until(lambda r: r.phase == "done")
    assert [end.code for end in done.exits] == [4, 4, 0]


async def test_many_pods_of_one_node(rig: Agents) -> None:
    await rig.agent()
    manifest = shell("exec sleep 1000")
    for n in range(20):
        await rig.want(manifest, instance=f"web~{n}")

    async def all_run() -> bool:
        found = await rig.realities()
        return len(found) == 20 and all(r.phase == "running" for r in found.values())

    await eventually(all_run, what="20 pods")
    found = await rig.realities()
    assert len({r.pid for r in found.values()}) == 20
    for n in range(20):
        await rig.unwant(instance=f"web~{n}")

    async def none() -> bool:
        return await rig.realities() == {}

    await eventually(none, what="removal of 20 pods")


async def until_logged(running: Running, text: str) -> None:
    path = running.state.logs("web") / "current.log"

    async def logged() -> bool:
        return path.exists() and text in path.read_text()

    await eventually(logged, what=f"{text!r} in the log")


async def test_limits_that_a_node_cannot_keep_are_refused_and_the_former_process_stays(rig: Agents) -> None:
    """As from a farm that does not know of ``runtime.limits``; this agent runs under no unit."""
    await rig.agent()
    present = await rig.presence()
    assert present is not None
    assert "runtime.limits" not in present[0].features
    await rig.want(shell("exec sleep 1000"))
    before = await rig.until(lambda r: r.phase == "running")
    index = await rig.want(shell("exec sleep 1000", limits=Limits(memory=64 << 20)))
    told = await rig.until(lambda r: r.refused == index)
    assert (told.pid, told.phase) == (before.pid, "running")
    assert f"cannot act on intent {index}: limits: this node cannot limit processes: " in told.reason
