"""Gangs on nodes: all members or none, released together with the addresses of all; virtual time."""

from __future__ import annotations

import pytest

from farmd.jobs.commands import JOB
from store import codec
from store.errors import InputInvalid
from store.jobs import Job, Run
from store.manifests import read_body
from store.peers import Peers
from store.reality import Intent
from tests.job_fleet import JobFleet, document, job_fleet
from tests.node_farms import KEYS

GANG = {"gang": True, "peers": True}
PORTED = {"pod": {"id": "bert", "command": ["/bin/true"], "ports": {"job": {}}}}


async def held(jobs: JobFleet, job: Job) -> dict[str, Intent]:
    """The job's intents, by instance."""
    return {
        place[1]: intent for place, (intent, _) in (await jobs.intents()).items() if intent.owner == job.id
    }


async def test_no_member_of_a_gang_starts_before_all_are_ready_and_all_are_told_the_same() -> None:
    async with job_fleet("n1", "n2", "n3") as jobs:
        await jobs.arrive("n1", "n2", "n3", address="10.0.0.7:8000")
        jobs.deaf = {"n3"}
        job = await jobs.run(worker={"replicas": 3, "node_selector": "", **PORTED}, **GANG)
        await jobs.clock.advance(10)
        found = await held(jobs, job)
        assert len(found) == 3
        assert all(intent.hold for intent in found.values())
        assert jobs.ran == []
        jobs.deaf = set()

        async def running() -> bool:
            return len(jobs.ran) == 3

        await jobs.until(running)
        found = await held(jobs, job)
        assert not any(intent.hold for intent in found.values())
        (peers,) = {intent.peers for intent in found.values()}
        body = codec.decode(Peers, await read_body(jobs.fleet.client, KEYS, peers), "peers")
        assert [peer.rank for peer in body.members] == [0, 1, 2]
        assert {intent.vars["FARMD_MASTER_ADDRESS"] for intent in found.values()} == {"10.0.0.7"}
        assert {intent.vars["FARMD_MASTER_PORT"] for intent in found.values()} == {
            str(body.members[0].ports["job"])
        }
        jobs.rule = lambda _: 0
        assert (await jobs.over(job)).outcome == "succeeded"
        assert len(jobs.ran) == 3


async def test_a_gang_that_does_not_fit_whole_takes_no_place() -> None:
    async with job_fleet("n1") as jobs:
        await jobs.arrive("n1", capacity={"gpu": 2.0})
        pod = {"id": "bert", "command": ["/bin/true"], "resources": {"gpu": 1}}
        job = await jobs.run(worker={"replicas": 3, "pod": pod}, gang=True)
        await jobs.clock.advance(30)
        assert await jobs.pods(job) == {}
        status = await jobs.status(job)
        assert status is not None
        assert status.state == "blocked"
        assert "1 of 3 pods found no place" in status.reason


async def test_held_places_are_given_back_when_the_others_do_not_come() -> None:
    async with job_fleet("n1", "n2") as jobs:
        jobs.deaf = {"n2"}
        job = await jobs.run(worker={"replicas": 4, **PORTED}, gang_timeout=20, **GANG)
        await jobs.clock.advance(5)
        assert len(await jobs.pods(job)) == 4

        async def none() -> bool:
            return not await jobs.pods(job)

        await jobs.until(none, 40)
        assert jobs.ran == []


async def test_how_often_a_gang_gave_its_places_back_is_durable_until_it_runs() -> None:
    async with job_fleet("n1", "n2") as jobs:
        jobs.deaf = {"n2"}
        job = await jobs.run(worker={"replicas": 4, **PORTED}, gang_timeout=5, **GANG)

        async def twice() -> bool:
            return (await jobs.state(job)).gave_back == 2

        await jobs.until(twice, 40)
        assert jobs.ran == []
        jobs.deaf = set()

        async def running() -> bool:
            return len(jobs.ran) == 4

        await jobs.until(running)
        run = await jobs.state(job)
        assert (run.gave_back, run.not_before) == (0, 0.0)
        assert run.started


@pytest.mark.parametrize(("said", "most"), [(30.0, 30.0), (7200.0, 120.0)])
async def test_r30_a_farm_that_takes_a_gang_over_leaves_places_to_others_as_the_former_one_did(
    said: float, most: float
) -> None:
    """Also where the clock of the former farm is two hours ahead."""
    async with job_fleet("n1", farms=0) as jobs:
        job = await jobs.run(worker={"replicas": 2, **PORTED}, **GANG)
        due = Run(gave_back=3, not_before=jobs.clock.now() + said)
        await jobs.fleet.put(KEYS.record("runs", job.id), due)
        await jobs.fleet.start("heir", kinds=("jobs", "nodes"))
        await jobs.clock.advance(most - 5)
        assert await jobs.pods(job) == {}

        async def running() -> bool:
            return len(jobs.ran) == 2

        await jobs.until(running, 30)
        assert (await jobs.state(job)).gave_back == 0


async def test_the_end_of_one_of_many_peers_restarts_all_of_them_once() -> None:
    async with job_fleet("n1", "n2") as jobs:
        job = await jobs.run(worker={"replicas": 3, "restart": "exit-code", **PORTED}, **GANG)

        async def running() -> bool:
            return len(jobs.ran) == 3

        await jobs.until(running)
        jobs.ends["bert-worker-1~0"] = 137
        jobs.rule = lambda instance: 0 if instance.endswith("~1") else None
        run = await jobs.over(job)
        assert (run.outcome, run.attempt, run.restarts) == ("succeeded", 1, 1)
        assert sorted(jobs.runs(job)) == sorted(
            f"worker/{index}~{attempt}" for index in range(3) for attempt in (0, 1)
        )


@pytest.mark.parametrize("failed", [0, 2])
async def test_a_member_that_comes_again_alone_is_told_where_rank_0_is_now(failed: int) -> None:
    async with job_fleet("n1", "n2", "n3") as jobs:
        job = await jobs.run(worker={"replicas": 3, "restart": "exit-code", **PORTED}, gang=True)

        async def running() -> bool:
            return len(jobs.ran) == 3

        await jobs.until(running)
        jobs.ends[f"bert-worker-{failed}~0"] = 137

        async def again() -> bool:
            return len(jobs.ran) == 4

        await jobs.until(again)
        found, said = await held(jobs, job), await jobs.realities()
        first = "bert-worker-0~1" if failed == 0 else "bert-worker-0~0"
        told = found[f"bert-worker-{failed}~1"].vars
        assert told["FARMD_MASTER_PORT"] == str(said[first].ports["job"])


def test_only_members_that_start_together_know_where_rank_0_is() -> None:
    pod = {"id": "bert", "command": ["x"], "env": {"MASTER": "${FARMD_MASTER_ADDRESS}"}}
    assert JOB.file.parse(document(worker={"pod": pod}, gang=True), "bert.yaml").gang
    with pytest.raises(InputInvalid, match=r"env.MASTER: found \$\{FARMD_MASTER_ADDRESS\}, expected one of"):
        JOB.file.parse(document(worker={"pod": pod}), "bert.yaml")


@pytest.mark.parametrize(("ports", "starts"), [(5_600, True), (7_600, False)])
async def test_r29_a_document_of_peers_may_be_as_large_as_a_key_can_be(ports: int, starts: bool) -> None:
    """As large as that of 5,000 members, and larger than what a transaction may have."""
    async with job_fleet("n1", "n2") as jobs:
        jobs.ports = tuple(f"{number:0>63}" for number in range(ports // 40))
        job = await jobs.run(worker={"replicas": 40, **PORTED}, **GANG)
        await jobs.clock.advance(20)
        status = await jobs.status(job)
        assert status is not None
        assert (len(jobs.ran), status.state == "blocked") == ((40, False) if starts else (0, True))
        if not starts:
            assert status.reason.startswith("the document that lists all members: found ")
            return
        (peers,) = {intent.peers for intent in (await held(jobs, job)).values()}
        assert len(await read_body(jobs.fleet.client, KEYS, peers)) > 380 * 1024
