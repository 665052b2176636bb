"""R43 with a real Consul, agents and processes: what runs before a workload begins, and after it ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from store.manifests import AfterStop, HealthCheck, Init, Manifest, Restart, Sidecar, Stop
from store.reality import Reality
from tests.agents import AgentProcess, Agents, alive, shell
from tests.fleet import eventually

SLOW = Restart(initial=60, maximum=60)


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def held(folder: Path, name: str) -> list[str]:
    """A command that says that it began and waits; it notes whether another one ran at the same time."""
    script = (
        f"mkdir {folder}/{name}.alone || echo twice >> {folder}/{name}.twice; echo $$ >> {folder}/{name};"
        f" while [ ! -e {folder}/{name}.go ]; do sleep 0.02; done; rmdir {folder}/{name}.alone"
    )
    return sh(script)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def begun(path: Path, count: int = 1) -> list[str]:
    async def there() -> list[str] | None:
        found = lines(path)
        return found if len(found) >= count else None

    return await eventually(there, what=f"{count} lines in {path}")


def runs(pid: str) -> bool:
    """Whether a process runs; one that nobody reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: str) -> None:
    async def over() -> bool:
        return not runs(pid)

    await eventually(over, what=f"the end of process {pid}")


def pod(script: str = "exec sleep 1000", **fields: Any) -> Manifest:
    return shell(script, **fields)


async def passing(rig: Agents) -> Reality:
    return await rig.until(lambda r: r.phase == "running" and r.health.state == "passing", what="passing")


async def test_r43_init_runs_in_order_and_the_pod_is_checked_only_once_its_workload_runs(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    check = HealthCheck(type="command", command=sh(f"echo checked >> {tmp_path}/checks"), interval=0.1)
    steps = [Init(command=sh(f"echo one >> {tmp_path}/order")), Init(command=held(tmp_path, "two"))]
    await rig.want(pod(f"echo main >> {tmp_path}/order; exec sleep 1000", init=steps, health=check))
    await begun(tmp_path / "two")
    waits = await rig.until(lambda r: r.preparing.startswith("init[1]"), what="the second command")
    assert (waits.phase, waits.health.state) == ("starting", "unknown")
    assert lines(tmp_path / "checks") == []
    (tmp_path / "two.go").touch()
    up = await passing(rig)
    assert lines(tmp_path / "order") == ["one", "main"]
    assert (up.preparing, up.reason, up.restarts) == ("", "", 0)


async def test_r43_a_failure_of_init_is_the_reason_with_the_end_of_its_output(rig: Agents) -> None:
    await rig.agent()
    fails = Init(command=sh("echo migrating; echo no database; exit 4"), retries=1)
    await rig.want(pod(init=[Init(command=["true"]), fails], restart=SLOW))
    down = await rig.until(lambda r: r.phase == "backoff")
    assert down.reason.startswith("init[1] (/bin/sh -c")
    assert down.reason.endswith("exited with code 4 at the last of 2 tries: migrating | no database")
    assert (down.exits[-1].code, len(down.exits)) == (4, 1)


async def test_r43_an_init_that_hangs_ends_with_all_that_it_started(rig: Agents, tmp_path: Path) -> None:
    await rig.agent()
    hangs = f"setsid sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 1000' & echo $$ >> {tmp_path}/pids; wait"
    await rig.want(pod(init=[Init(command=sh(hangs), timeout=1)], restart=SLOW))
    down = await rig.until(lambda r: r.phase == "backoff")
    assert "it did not finish within 1 s" in down.reason
    for pid in await begun(tmp_path / "pids", 2):
        await gone(pid)


async def test_r43_a_killed_agent_neither_runs_init_twice_nor_forgets_it(rig: Agents, tmp_path: Path) -> None:
    manifest = pod(init=[Init(command=held(tmp_path, "init"))])
    async with AgentProcess(rig) as agent:
        await rig.want(manifest)
        await begun(tmp_path / "init")
        await agent.end(signal.SIGKILL)
    async with AgentProcess(rig):
        await rig.until(lambda r: r.phase == "starting" and r.preparing.startswith("init[0]"))
        (tmp_path / "init.go").touch()
        up = await passing(rig)
        assert alive(up)
    assert len(lines(tmp_path / "init")) == 1
    assert not (tmp_path / "init.twice").exists()


async def test_r43_init_that_ran_out_while_no_agent_ran_is_followed_by_the_workload(
    rig: Agents, tmp_path: Path
) -> None:
    async with AgentProcess(rig) as agent:
        await rig.want(
            pod(f"echo main >> {tmp_path}/main; exec sleep 1000", init=[Init(command=held(tmp_path, "init"))])
        )
        await begun(tmp_path / "init")
        await agent.end(signal.SIGKILL)
    (tmp_path / "init.go").touch()
    await begun(tmp_path / "main")
    async with AgentProcess(rig):
        await passing(rig)
    assert len(lines(tmp_path / "main")) == len(lines(tmp_path / "init")) == 1


async def test_r43_a_pod_that_is_removed_during_init_leaves_nothing_behind(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    await rig.want(pod(init=[Init(command=held(tmp_path, "init"))], after_stop=[AfterStop(command=["true"])]))
    [pid] = await begun(tmp_path / "init")
    await rig.unwant()
    await rig.until_gone()
    assert not runs(pid)


async def test_r43_a_shim_that_is_killed_during_init_leaves_no_second_one(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    await rig.want(pod(init=[Init(command=held(tmp_path, "init"))]))
    [first] = await begun(tmp_path / "init")
    [identity] = rig.identities()
    (tmp_path / "init.alone").rmdir()
    os.kill(identity.shim, signal.SIGKILL)
    await begun(tmp_path / "init", 2)
    await gone(first)
    assert not (tmp_path / "init.twice").exists()
    (tmp_path / "init.go").touch()
    await passing(rig)


async def test_r43_after_stop_runs_once_after_each_end_and_its_failure_holds_up_nothing(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    steps = [
        AfterStop(command=sh(f"echo after >> {tmp_path}/order; echo gone; exit 5")),
        AfterStop(command=["sleep", "1000"], timeout=0.3),
    ]
    await rig.want(pod(f"echo main >> {tmp_path}/order; exit 3", after_stop=steps, restart=SLOW))
    down = await rig.until(lambda r: r.phase == "backoff")
    assert down.exits[-1].code == 3
    assert "exited with code 3" in down.reason
    assert "exited with code 5: gone" in down.reason
    assert "after_stop[1] (sleep 1000): it did not finish within 0.3 s" in down.reason
    assert lines(tmp_path / "order") == ["main", "after"]


async def test_r43_a_killed_agent_waits_for_after_stop_before_the_next_start(
    rig: Agents, tmp_path: Path
) -> None:
    steps = [AfterStop(command=held(tmp_path, "after"), timeout=60)]
    script = f"echo main >> {tmp_path}/main; exec sleep 1000"
    async with AgentProcess(rig) as agent:
        await rig.want(pod(script, after_stop=steps, stop=Stop(grace=1)))
        await passing(rig)
        await rig.want(pod(f"{script} # 2", after_stop=steps, stop=Stop(grace=1)))
        await begun(tmp_path / "after")
        await agent.end(signal.SIGKILL)
    async with AgentProcess(rig):
        await rig.until(lambda r: r.phase == "stopping" and r.preparing.startswith("after_stop[0]"))
        assert len(lines(tmp_path / "main")) == 1
        (tmp_path / "after.go").touch()
        await begun(tmp_path / "main", 2)
        await passing(rig)
    assert not (tmp_path / "after.twice").exists()
    assert len(lines(tmp_path / "after")) == 1


def beside(folder: Path, name: str, script: str = "") -> Sidecar:
    """A program that notes its process and its end, and stays until it is told to end."""
    waits = f"trap 'echo {name} >> {folder}/ended; exit 0' TERM; {script} while :; do sleep 0.02; done"
    return Sidecar(name=name, command=sh(f"echo $$ >> {folder}/{name}; echo {name} says hi; {waits}"))


async def test_r43_sidecars_begin_in_order_before_the_workload_and_end_after_it(
    rig: Agents, tmp_path: Path
) -> None:
    running = await rig.agent()
    main = f"trap 'echo main >> {tmp_path}/ended; exit 0' TERM"
    await rig.want(
        pod(
            f"{main}; while :; do sleep 0.02; done",
            sidecars=[beside(tmp_path, "one"), beside(tmp_path, "two")],
            after_stop=[AfterStop(command=sh(f"echo after >> {tmp_path}/ended"))],
        )
    )
    up = await rig.until(lambda r: len(r.sidecars) == 2 and all(each.runs for each in r.sidecars.values()))
    assert list(up.sidecars) == ["one", "two"]
    await passing(rig)
    log = running.state.logs("web") / "two" / "current.log"
    await begun(log)
    assert lines(log) == ["two says hi"]
    await rig.unwant()
    await rig.until_gone()
    ended = lines(tmp_path / "ended")
    assert (ended[0], sorted(ended[1:3]), ended[3]) == ("main", ["one", "two"], "after")
    assert not any(runs(pid) for name in ("one", "two") for pid in lines(tmp_path / name))


async def test_r43_a_sidecar_that_ends_is_started_again_and_its_pod_goes_on(
    rig: Agents, tmp_path: Path
) -> None:
    await rig.agent()
    fails = Sidecar(name="ship", command=sh(f"echo $$ >> {tmp_path}/ship; exit 3"))
    missing = Sidecar(name="none", command=["/nonexistent"])
    await rig.want(pod(sidecars=[fails, missing]))
    first = await passing(rig)
    await begun(tmp_path / "ship", 3)
    told = await rig.until(
        lambda r: (
            r.sidecars["ship"].restarts >= 2
            and r.sidecars["ship"].reason == "exited with code 3"
            and r.sidecars["none"].reason == "command /nonexistent: No such file or directory"
        )
    )
    assert (told.pid, told.restarts, told.phase, told.health.state) == (first.pid, 0, "running", "passing")


@pytest.mark.parametrize("leaves", ["true", "setsid sleep 1000 & sleep 0.1"], ids=["nothing", "an orphan"])
async def test_r43_a_sidecar_that_always_ends_costs_its_shim_no_descriptors(rig: Agents, leaves: str) -> None:
    await rig.agent()
    fails = Sidecar(name="ship", command=sh(f"{leaves}\nexit 1"))
    restart = Restart(initial=0, maximum=0)
    await rig.want(pod(sidecars=[fails], restart=restart))

    async def held_by_the_shim(restarts: int) -> int:
        told = await rig.until(lambda r: "ship" in r.sidecars and r.sidecars["ship"].restarts >= restarts)
        status = Path(f"/proc/{told.pid}/status").read_text()
        (shim,) = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
        return len(os.listdir(f"/proc/{shim}/fd"))  # noqa: PTH208

    before = await held_by_the_shim(2)
    assert await held_by_the_shim(10) <= before + 4  # those of one that begins


async def test_r43_an_agent_that_is_killed_finds_each_process_again(rig: Agents, tmp_path: Path) -> None:
    sidecars = [beside(tmp_path, "one"), beside(tmp_path, "two")]
    async with AgentProcess(rig) as agent:
        await rig.want(pod(sidecars=sidecars))
        await begun(tmp_path / "one")
        await agent.end(signal.SIGKILL)  # perhaps while the second one starts
    await begun(tmp_path / "two")
    [first] = lines(tmp_path / "one")
    os.kill(int(first), signal.SIGKILL)  # with no agent there
    again = (await begun(tmp_path / "one", 2))[1]
    async with AgentProcess(rig):
        up = await rig.until(lambda r: r.phase == "running" and len(r.sidecars) == 2)
        assert (up.sidecars["one"].restarts, up.sidecars["two"].restarts) == (1, 0)
        await passing(rig)
        await rig.unwant()
        await rig.until_gone()
    assert not any(runs(pid) for pid in (first, again, *lines(tmp_path / "two")))
    assert len(lines(tmp_path / "two")) == 1


async def test_r43_a_shim_that_is_killed_leaves_no_sidecar_behind(rig: Agents, tmp_path: Path) -> None:
    await rig.agent()
    await rig.want(pod(sidecars=[beside(tmp_path, "one")]))
    await passing(rig)
    [first] = await begun(tmp_path / "one")
    [identity] = rig.identities()
    os.kill(identity.shim, signal.SIGKILL)
    await begun(tmp_path / "one", 2)
    await gone(first)


async def test_r43_the_end_of_the_lease_ends_all_processes(rig: Agents, tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ >> {tmp_path}/one; sleep 1000; sleep 1000"
    stubborn = Sidecar(name="one", command=sh(script))
    after = [AfterStop(command=sh(f"echo after >> {tmp_path}/after"))]
    async with AgentProcess(rig) as agent:
        manifest = pod(sidecars=[stubborn], after_stop=after, stop_after=6.0, stop=Stop(grace=1))
        await rig.want(manifest)
        up = await passing(rig)
        [first] = await begun(tmp_path / "one")
        await agent.end(signal.SIGKILL)
    await gone(first)
    await gone(str(up.pid))
    assert not (tmp_path / "after").exists()
