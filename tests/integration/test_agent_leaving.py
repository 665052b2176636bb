"""R39 with a real Consul and real processes: a pod leaves before it is asked to stop."""

from __future__ import annotations

import signal

import aiohttp

from store.manifests import HealthCheck, Stop
from store.reality import Reality
from tests.agents import AgentProcess, Agents, alive, sha_of, shell, web
from tests.fleet import eventually

# The command lasts until a person lets it end; it counts how often it ran.
WITHDRAW = [
    "/bin/sh",
    "-c",
    "echo $FARMD_INSTANCE >> asked; while [ ! -e go ]; do sleep 0.02; done; touch left",
]
LEAVING = Stop(grace=600, command=WITHDRAW, command_timeout=60)
# It notes at its end whether the command was over by then.
NOTING = "trap 'test -e left && touch after; exit 0' TERM; while :; do sleep 0.02; done"


def leaves(reality: Reality) -> bool:
    return reality.phase == "stopping" and reality.leaves_until > 0


async def noted(rig: Agents, name: str) -> str:
    """A file that the pod or its command made in its folder."""
    path = rig.root / "n1" / "instances" / "web" / "work" / name

    async def there() -> str:
        return (path.read_text() or "empty") if path.exists() else ""

    return str(await eventually(there, what=name))


async def test_r39_a_pod_that_leaves_is_told_and_still_answers_until_its_command_is_over(rig: Agents) -> None:
    running = await rig.agent()
    await rig.want(web(stop=LEAVING))
    await rig.until(lambda r: r.health.state == "passing")
    await rig.unwant()
    reality = await rig.until(leaves)
    assert reality.reason == "no longer wanted"
    assert await noted(rig, "asked") == "web\n"
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{reality.ports['http']}/") as answer,
    ):
        assert answer.status == 200
    (running.state.work("web") / "go").touch()
    await rig.until_gone()
    assert not alive(reality)


async def test_r39_the_signal_comes_after_the_command_and_the_next_start_after_the_end(rig: Agents) -> None:
    running = await rig.agent()
    old, new = shell(NOTING, stop=LEAVING), shell("test -e after && exec sleep 1000; exit 3", stop=LEAVING)
    await rig.want(old)
    before = await rig.until_running(old)
    await rig.want(new)
    assert (await rig.until(leaves)).manifest == sha_of(old)
    assert alive(before)
    (running.state.work("web") / "go").touch()
    after = await rig.until_running(new)
    assert not alive(before)
    assert (after.restarts, after.health.state) == (0, "passing")


async def test_r39_a_leave_goes_on_after_a_kill_of_the_agent_and_asks_once_more(rig: Agents) -> None:
    pod = shell(NOTING, stop=LEAVING)
    async with AgentProcess(rig) as agent:
        await rig.want(pod)
        before = await rig.until_running(pod)
        await rig.want(pod, restart=1)
        await rig.until(leaves)
        await noted(rig, "asked")
        await agent.end(signal.SIGKILL)
    assert alive(before)
    async with AgentProcess(rig):
        assert (await rig.until(leaves)).pid == before.pid
        await eventually(lambda: _lines(rig, 2), what="the second call")
        (rig.root / "n1" / "instances" / "web" / "work" / "go").touch()
        await rig.until(lambda r: r.restart == 1 and r.phase == "running")
        assert not alive(before)
        await noted(rig, "after")


async def _lines(rig: Agents, many: int) -> bool:
    return len((await noted(rig, "asked")).splitlines()) == many


async def test_r39_what_fails_in_the_command_is_told_and_holds_up_no_stop(rig: Agents) -> None:
    await rig.agent()
    for number, (command, why) in enumerate(
        [(["/bin/sh", "-c", "exit 3"], "exit code 3"), (["sleep", "1000"], "it did not finish within 0.2 s")]
    ):
        pod = shell(
            "trap '' TERM; while :; do sleep 0.02; done",
            stop=Stop(grace=600, command=command, command_timeout=0.2),
        )
        await rig.want(pod, instance=f"w{number}")
        before = await rig.until_running(pod, instance=f"w{number}")
        await rig.unwant(instance=f"w{number}")
        signalled = await rig.until(
            lambda r: r.phase == "stopping" and not r.leaves_until, instance=f"w{number}"
        )
        assert signalled.reason == f"no longer wanted; stop.command: {why}"
        assert alive(before)


async def test_r39_a_pod_that_never_passed_its_check_has_nothing_to_withdraw(rig: Agents) -> None:
    await rig.agent()
    check = HealthCheck(type="command", command=["false"], interval=3600)
    pod = shell("exec sleep 1000", stop=LEAVING, health=check)
    await rig.want(pod)
    before = await rig.until_running(pod)
    await rig.unwant()
    await rig.until_gone()
    assert not alive(before)


async def test_r39_an_agent_that_is_killed_after_the_signal_does_not_ask_again(rig: Agents) -> None:
    asked = rig.root / "asked"
    pod = shell(
        "trap 'test -e over && exit 0' TERM; while :; do sleep 0.02; done",
        stop=Stop(grace=600, command=["/bin/sh", "-c", f"echo $FARMD_INSTANCE >> {asked}"]),
    )
    async with AgentProcess(rig) as agent:
        await rig.want(pod)
        before = await rig.until_running(pod)
        await rig.unwant()
        await rig.until(lambda r: r.phase == "stopping" and not r.leaves_until and asked.exists())
        await agent.end(signal.SIGKILL)
    (rig.root / "n1" / "instances" / "web" / "work" / "over").touch()
    assert alive(before)
    async with AgentProcess(rig):
        await rig.until_gone()
    assert not alive(before)
    assert asked.read_text() == "web\n"
