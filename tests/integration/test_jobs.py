"""Jobs with a real farm, real agents and real processes, as a person runs them with farmctl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from store.jobs import Job
from store.reality import Reality
from tests.agents import Agents, agents_on
from tests.farmctl import ROOT, Farmctl, Result
from tests.fleet import RunningFarm, start_farm
from tests.web_servers import serving

EXAMPLES = ROOT / "examples" / "jobs"


class Office:
    """Somebody at a prompt; a farm and agents go on while a command runs."""

    def __init__(self, agents: Agents, address: str, folder: Path) -> None:
        self.agents = agents
        self.farmctl = Farmctl(address, agents.keys.prefix)
        self.folder = folder

    def file(self, text: str) -> str:
        path = self.folder / "job.yaml"
        path.write_text(text)
        return str(path)

    async def run(self, *words: str) -> Result:
        return await asyncio.to_thread(self.farmctl, *words)

    async def staffed(self, *nodes: str) -> None:
        """Agents come; all of them are on this machine."""
        await asyncio.gather(*(self.agents.agent(node, address="http://127.0.0.1:1") for node in nodes))

    async def results(self, name: str) -> list[str]:
        """What the members that stand wrote into their results."""
        (job,) = [
            each for _, each in (await self.agents.dump()).tree("jobs", Job).values() if each.name == name
        ]
        found = (await self.agents.dump()).tree("reality", Reality).values()
        return sorted(each.exits[-1].message for _, each in found if each.owner == job.id and each.exits)


@pytest.fixture
async def office(consul_dev: str, tmp_path: Path) -> AsyncIterator[Office]:
    async with agents_on(consul_dev, tmp_path) as agents:
        farm: RunningFarm | None = None
        try:
            farm = await start_farm(agents.client, "farm-1", keys=agents.keys, kinds=("jobs",))
            yield Office(agents, consul_dev, tmp_path)
        finally:
            if farm is not None:
                await farm.close()


async def test_the_array_of_the_examples_runs_each_slot_and_counts_its_retry_once(office: Office) -> None:
    await office.staffed("n1", "n2")
    ran = await office.run("job", "run", "-f", str(EXAMPLES / "array.yaml"), "--wait", "--timeout", "150")
    assert ran.code == 0, ran
    assert "succeeded, 1 restart" in ran.err
    listed = await office.run("job", "list")
    assert [line.split()[0::2][:1] for line in listed.out.splitlines()[1:]] == [["squares"]]
    assert "12/12" in listed.out
    told = (await office.run("job", "get", "squares", "-o", "json")).json
    assert (told["status"]["done"], told["status"]["restarts"]) == (12, 1)
    logs = await office.run("job", "logs", "squares/worker/5", "--attempt", "1")
    again = await office.run("job", "run", "-f", str(EXAMPLES / "array.yaml"))
    assert again.code == 0
    assert "nothing to change" in again.out + again.err
    other = await office.run("job", "run", "-f", str(EXAMPLES / "array.yaml"), "--param", "seconds=9")
    assert other.code == 5
    assert "job 'squares' exists and differs" in other.err
    assert logs.code in (0, 7)  # the agents of this test serve no HTTP
    gone = await office.run("job", "delete", "squares", "-y", "--timeout", "150")
    assert gone.code == 0, gone
    assert (await office.run("job", "get", "squares")).code == 4


async def test_the_gang_of_the_examples_elects_rank_0_on_five_agents(office: Office) -> None:
    await office.staffed("n1", "n2", "n3", "n4", "n5")
    ran = await office.run("job", "run", "-f", str(EXAMPLES / "gang.yaml"), "--wait", "--timeout", "150")
    assert ran.code == 0, ran
    assert await office.results("election") == ["leads 5", *["rank 0 leads"] * 4]


async def test_a_wait_for_a_job_that_fails_exits_with_9_and_one_that_takes_long_with_8(
    office: Office,
) -> None:
    await office.staffed("n1")
    pod = "pod: {id: bad, command: [/bin/sh, -c, '%s']}"
    bad = (
        "name: bad\ntypes: [{name: worker, restart: never, "
        + pod % "echo no data > $FARMD_RESULT; exit 3"
        + "}]"
    )
    failed = await office.run("job", "run", "-f", office.file(bad), "--wait", "--timeout", "150")
    assert failed.code == 9, failed
    assert "worker/0 ended with exit code 3: no data" in failed.err
    slow = "name: slow\ntypes: [{name: worker, " + pod % "sleep 60" + "}]"
    late = await office.run("job", "run", "-f", office.file(slow), "--wait", "--timeout", "3")
    assert late.code == 8, late
    stopped = await office.run("job", "stop", "slow", "-y", "--wait", "--timeout", "150")
    assert stopped.code == 0, stopped
    told = (await office.run("job", "get", "slow", "-o", "json")).json
    assert (told["state"], told["status"]["placed"]) == ("suspended", 0)


async def test_people_are_told_why_a_member_does_not_start(office: Office) -> None:
    await office.staffed("n1")
    lost = "name: lost\ntypes: [{name: worker, pod: {id: lost, command: [/no/such/program]}}]"
    ran = await office.run("job", "run", "-f", office.file(lost), "--wait", "--timeout", "12")
    why = "worker/0: command /no/such/program: No such file or directory"
    assert (ran.code, why in ran.err) == (8, True), ran
    for words in (("job", "list"), ("job", "describe", "lost"), ("job", "explain", "lost")):
        told = await office.run(*words)
        assert why in " ".join(told.out.split()), told
    assert (await office.run("job", "get", "lost", "-o", "json")).json["state"] == "blocked"


async def test_logs_are_those_of_the_attempt_that_ran_last_also_of_a_slot_that_is_done(
    office: Office,
) -> None:
    async with serving(_what_was_asked) as address:
        await office.agents.agent("n1", address=address)
        ran = await office.run("job", "run", "-f", str(EXAMPLES / "array.yaml"), "--wait", "--timeout", "150")
        assert ran.code == 0, ran

        assert (await office.run("job", "logs", "squares/worker/5")).out == "squares-worker-5~1\n"
        first = await office.run("job", "logs", "squares/worker/5", "--attempt", "0")
        assert first.out == "squares-worker-5~0\n"
        none = await office.run("job", "logs", "squares/worker/5", "--attempt", "2")
        assert (none.code, "no member 'squares-worker-5~2' exists or existed" in none.err) == (4, True), none
        all_gone = await office.run("job", "logs", "squares")
        assert "of a member that is gone: farmctl job logs squares/worker/0\n" in all_gone.err, all_gone


async def _what_was_asked(request: web.Request) -> web.Response:
    """An agent that answers with the instance whose logs are asked for."""
    return web.Response(text=request.path.split("/")[-2] + "\n")
