"""farmctl waits for a rollout: its exit codes, its lines in a pipe, its picture on a terminal, and ^C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from farmd.rollout.noun import ROLLOUT
from store.policies import Policy
from tests.farmctl import Farmctl, Result
from tests.fleet import RunningFarm, cluster_on, eventually, start_farm
from tests.obedient import Obedient, obedient
from tests.rolling import IMPATIENT, KINDS, QUICK, SECOND, STAGED, Rolling, digest


@pytest.fixture
async def rolling(consul_dev: str) -> AsyncIterator[Rolling]:
    async with cluster_on(consul_dev) as cluster:
        made = Rolling(cluster, consul_dev)
        async with obedient(cluster) as agents:
            made.agents = agents  # type: ignore[attr-defined]
            farm: RunningFarm = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)
            await made.prepare(3)
            yield made
            await farm.close()


class Person:
    """Somebody at a prompt; each command runs while farm and agents go on."""

    def __init__(self, rolling: Rolling, folder: Path, policy: Policy) -> None:
        self.farmctl = Farmctl(rolling.address, rolling.cluster.keys.prefix)
        self.file = folder / "go.yaml"
        content = {"name": "web", "pod": msgspec.to_builtins(SECOND), "rollout": msgspec.to_builtins(policy)}
        self.file.write_text(yaml.safe_dump(content))

    async def run(self, *words: str) -> Result:
        return await asyncio.to_thread(self.farmctl, *words)

    async def begin(self, *words: str) -> Result:
        return await self.run("rollout", "create", "-f", str(self.file), "--wait", *words)

    async def on_terminal(self, *words: str, until: str) -> Result:
        return await asyncio.to_thread(lambda: self.farmctl.on_terminal(*words, until=until))


async def test_a_wait_in_a_pipe_prints_what_changes_and_exits_0_when_it_is_done(
    rolling: Rolling, tmp_path: Path
) -> None:
    result = await Person(rolling, tmp_path, QUICK).begin()
    assert result.code == 0, result
    lines = [line for line in result.err.splitlines() if line.startswith("rollout/web: ")]
    assert len(lines) == len(dict.fromkeys(lines))
    assert lines[-1] == "rollout/web: ended: done: 3 pods of the new version are available"
    assert not any("\x1b" in line for line in lines)


async def test_a_version_that_fails_exits_9_and_says_why(rolling: Rolling, tmp_path: Path) -> None:
    agents: Obedient = rolling.agents  # type: ignore[attr-defined]
    agents.broken = {digest(SECOND)}
    result = await Person(rolling, tmp_path, IMPATIENT).begin()
    assert result.code == 9, result
    assert "farmctl: rollout 'web' was reverted: 1 s without progress: 1 of 1 pods" in result.err


async def test_a_wait_that_lasts_too_long_exits_8_and_the_rollout_goes_on(
    rolling: Rolling, tmp_path: Path
) -> None:
    person = Person(rolling, tmp_path, STAGED)
    result = await person.begin("--timeout", "3s")
    assert (result.code, "rollout 'web' is not over after 3 s: " in result.err) == (8, True), result

    async def asks() -> bool:
        status = await person.run("rollout", "status", "web", "-o", "json")
        return bool(status.json["status"] and status.json["status"]["asks"] == 2)

    await eventually(asks, what="the question of the second stage")
    approved: Any = await person.run("rollout", "approve", "web", "--wait")
    assert approved.code == 0, approved


async def test_an_interrupt_on_a_terminal_leaves_the_rollout_going_and_says_so(
    rolling: Rolling, tmp_path: Path
) -> None:
    person = Person(rolling, tmp_path, STAGED)
    words = ("rollout", "create", "-f", str(person.file), "-y", "--wait")
    result = await person.on_terminal(*words, until="waits for farmctl rollout approve web")
    assert result.code == 130, result
    assert "floor 2 < 2 old + 1 new: 1 may leave" in result.out
    assert "█" in result.out
    assert "rollout/web: continues without this wait; farmctl rollout status web" in result.out
    assert "stage 2 waits" in (await person.run("rollout", "status", "web")).out


async def test_a_watch_of_the_status_ends_with_the_rollout(rolling: Rolling, tmp_path: Path) -> None:
    person = Person(rolling, tmp_path, STAGED)
    await person.run("rollout", "create", "-f", str(person.file), "-q")
    watch = asyncio.create_task(person.run("rollout", "status", "web", "--watch"))
    (ident,) = [
        each.record.id
        for each in (await ROLLOUT.records(rolling.call.client, rolling.call.keys).list()).items
    ]
    await rolling.status(ident, "waits for farmctl rollout approve web")
    assert (await person.run("rollout", "abort", "web", "-y", "--wait")).code == 0
    result = await watch
    assert (result.code, "rollout/web is over: aborted: " in result.err) == (0, True), result


async def test_a_rollout_that_is_over_is_told_by_every_command_that_shows_one(
    rolling: Rolling, tmp_path: Path
) -> None:
    person = Person(rolling, tmp_path, QUICK)
    assert (await person.begin("-q")).code == 0
    for verb in ("describe", "get", "status", "explain", "diff"):
        result = await person.run("rollout", verb, "web")
        assert (result.code, "rollout 'web' ended " in result.err, "ago: done" in result.err) == (
            4,
            True,
            True,
        ), result
        assert "hint: farmctl rollout history web" in result.err
