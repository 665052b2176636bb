"""An agent whose disk is full goes on, says so and heals by itself (R26): real disk, real Consul."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from farmd.agent import supervisor
from farmd.agent.errors import StateLocked, StateUnsaved
from farmd.agent.model import Record
from farmd.agent.state import AgentIdentity, StateDirectory
from scheduler.fleet import node_view
from store.manifests import HealthCheck, Manifest
from store.reality import Reality
from tests.agents import Agents, agents_on, alive, kill, sha_of, shell
from tests.fleet import eventually
from tests.small_disk import SmallDisk

OLD, NEW = shell("exec sleep 1000"), shell("exec sleep 2000")


def checked(sign: Path, **fields: Any) -> Manifest:
    """A pod that is unhealthy while a file, on another disk, is there."""
    check = HealthCheck(type="command", command=["test", "!", "-e", str(sign)], interval=0.1, failures=2)
    return shell("exec sleep 3000", health=check, **fields)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    (tmp_path / "n1").mkdir()
    with SmallDisk(tmp_path / "n1") as mounted:
        yield mounted


@pytest.fixture
async def rig(consul_dev: str, disk: SmallDisk) -> AsyncIterator[Agents]:
    async with agents_on(consul_dev, disk.path.parent) as made:
        yield made


def says_disk_full(reality: Reality) -> bool:
    return "disk full" in reality.reason


async def sessions(rig: Agents) -> set[str]:
    """The ids of the sessions of agents of this name; those of earlier tests end meanwhile."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{rig.address}/v1/session/list") as answer:
        return {found["ID"] for found in await answer.json() if found["Name"] == "farmd-agent-n1"}


async def test_r26_a_restart_on_a_full_disk_adopts_what_runs(
    rig: Agents, disk: SmallDisk, tmp_path: Path
) -> None:
    manifest = checked(tmp_path / "sick")
    first = await rig.agent()
    await rig.want(manifest)
    before = await rig.until(lambda r: r.health.state == "passing")
    await first.crash()
    disk.fill()
    again = await rig.agent()
    index = await rig.want(manifest, owner="rc2")
    after = await rig.until(lambda r: r.intent == index)
    assert (after.pid, after.owner, after.restarts) == (before.pid, "rc2", 0)
    assert not again.task.done()


async def test_r26_a_node_that_never_saved_anything_opens_one_session(rig: Agents, disk: SmallDisk) -> None:
    before = await sessions(rig)
    for name in ("instances", "manifests"):
        (disk.path / name).mkdir()
    disk.fill()
    await rig.agent()
    await rig.want(OLD)
    await rig.until(says_disk_full)
    assert len(await sessions(rig) - before) == 1
    disk.free()
    await rig.until_running(OLD)
    assert len(await sessions(rig) - before) == 1


async def test_r26_a_full_disk_refuses_starts_and_stops_nothing_that_could_not_start_again(
    rig: Agents, disk: SmallDisk
) -> None:
    await rig.agent()
    for instance in ("stays", "goes"):
        await rig.want(OLD, instance=instance)
        await rig.until_running(OLD, instance=instance)
    before = (await rig.realities())["stays"]
    disk.fill()
    await rig.want(NEW, instance="comes")
    await rig.want(NEW, instance="stays")
    await rig.unwant(instance="goes")
    await rig.until_gone(instance="goes")
    await rig.until(says_disk_full, instance="comes")
    refused = await rig.until(says_disk_full, instance="stays")
    assert (refused.pid, refused.phase, refused.manifest) == (before.pid, "running", sha_of(OLD))
    disk.free()
    for instance in ("stays", "comes"):
        healed = await rig.until_running(NEW, instance=instance)
        assert not says_disk_full(healed)


async def test_r26_a_node_with_a_full_disk_gets_no_new_pods_until_there_is_room(
    rig: Agents, disk: SmallDisk
) -> None:
    """Its presence says so, which counts as a cordon wherever places are chosen."""

    async def said() -> str:
        found = await rig.presence()
        assert found is not None
        return node_view("n1", agent=found[0]).cordon_reason

    await rig.agent()
    assert await said() == ""
    disk.fill()
    await eventually(said, what="the closed node")
    assert (await said()).startswith("disk full: state_dir ")
    disk.free()

    async def opened() -> bool:
        return await said() == ""

    await eventually(opened, what="the open node")


async def test_r26_an_end_on_a_full_disk_is_known_and_what_ended_starts_again_when_there_is_room(
    rig: Agents, disk: SmallDisk, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    mortal = shell(f"while test ! -e {end}; do sleep 0.02; done; exit 7")
    first = await rig.agent()
    await rig.want(mortal)
    before = await rig.until_running(mortal)
    await first.crash()
    disk.fill()
    await rig.agent()
    end.touch()
    ended = await rig.until(lambda r: r.pid == 0 and says_disk_full(r))
    assert [each.code for each in ended.exits] == [7]
    end.unlink()
    disk.free()
    healed = await rig.until(lambda r: r.phase == "running" and not says_disk_full(r))
    assert healed.pid != before.pid


@pytest.mark.parametrize("stop_after", [0, 600])
async def test_r26_rounds_go_on_on_a_full_disk(
    rig: Agents, disk: SmallDisk, tmp_path: Path, stop_after: float
) -> None:
    await rig.agent()
    await rig.want(checked(tmp_path / "sick", stop_after=stop_after))
    await rig.until(lambda r: r.health.state == "passing")
    await rig.want(OLD, instance="other")
    other = await rig.until_running(OLD, instance="other")
    disk.fill()
    (tmp_path / "sick").touch()
    sick = await rig.until(lambda r: r.health.state == "critical")
    assert says_disk_full(sick)
    kill(other)
    down = await rig.until(says_disk_full, instance="other")
    assert (down.exits[-1].code, alive(sick)) == (-9, True)
    disk.free()
    await rig.until_running(OLD, instance="other")

    async def quiet() -> bool:
        return not any(map(says_disk_full, (await rig.realities()).values()))

    await eventually(quiet, what="the end of the complaint")


async def test_a_log_says_where_output_is_missing(rig: Agents, disk: SmallDisk, tmp_path: Path) -> None:
    wait = f"while test ! -e {tmp_path}/step$n; do sleep 0.02; done"
    noise = "head -c 20000 /dev/zero | tr '\\0' x"
    running = await rig.agent()
    await rig.want(shell(f"echo first; n=1; {wait}; {noise}; n=2; {wait}; echo last; exec sleep 1000"))
    log = running.state.logs("web") / "current.log"

    async def ends(line: str) -> bool:
        return log.exists() and log.read_text().endswith(line)

    await eventually(lambda: ends("first\n"), what="the first line")
    disk.fill()
    (tmp_path / "step1").touch()
    await eventually(lambda: ends("x"), what="the output that still found room")
    disk.free()
    (tmp_path / "step2").touch()
    await eventually(lambda: ends("last\n"), what="the last line")
    lines = log.read_text().splitlines()
    assert lines[-2].startswith("farmd: ")
    assert lines[-2].endswith(" bytes of output were lost here: disk full")


async def test_r26_a_state_directory_that_was_removed_is_made_anew(
    consul_dev: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_AGAIN", 0.1)
    async with agents_on(consul_dev, tmp_path) as rig:
        first = await rig.agent()
        await rig.want(OLD)
        before = await rig.until_running(OLD)
        shutil.rmtree(tmp_path / "n1")

        async def back() -> bool:
            return first.state.identity("web") is not None and first.state.load("web") is not None

        await eventually(back, what="the records")
        with pytest.raises(StateLocked), StateDirectory(tmp_path / "n1").locked("n1"):
            pass
        await first.crash()
        again = await rig.agent()
        assert [pod.pid for pod in again.agent.reality().values()] == [before.pid]
        kill(before)
        restarted = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
        assert restarted.exits[-1].code == -9


async def test_r26_processes_whose_records_were_lost_without_an_agent_are_found_again(
    consul_dev: str, tmp_path: Path
) -> None:
    """The state directory was removed while no agent ran: nothing runs twice, nothing unwanted runs on."""
    lives = tmp_path / "lives"
    tells = f"trap 'sleep 0.2; echo over >>{lives}; exit' TERM; echo begun >>{lives}"
    pod = shell(f"{tells}; while :; do sleep 0.05; done")
    async with agents_on(consul_dev, tmp_path) as rig:
        first = await rig.agent()
        await rig.want(OLD, instance="goes")
        goes = await rig.until_running(OLD, instance="goes")
        await rig.want(pod)
        before = await rig.until_running(pod)
        await first.crash()
        shutil.rmtree(tmp_path / "n1")
        await rig.unwant(instance="goes")
        await rig.agent()
        after = await rig.until(lambda r: r.phase == "running" and r.pid != before.pid)
        await rig.until_gone(instance="goes")
        assert lives.read_text().split() == ["begun", "over", "begun"]
        assert not alive(goes)
        assert (after.manifest, alive(before)) == (sha_of(pod), False)


def test_r26_a_directory_that_can_only_be_read_is_locked_all_the_same(disk: SmallDisk) -> None:
    state = StateDirectory(disk.path)
    with state.locked("n1"):
        state.save_identity(AgentIdentity("n1", "c1", "s1"))
    disk.read_only()
    with state.locked("n1") as identity:
        assert identity == AgentIdentity("n1", "c1", "s1")
        with pytest.raises(StateLocked), StateDirectory(disk.path).locked("n1"):
            pass
        with pytest.raises(StateUnsaved, match="Read-only file system: state_dir"):
            state.save_first(Record(instance="web"))
        state.save(Record(instance="web"))
        assert state.unsaved_instances() == {"web": "Read-only file system"}
