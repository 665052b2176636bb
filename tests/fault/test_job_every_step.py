"""A farm killed or stopped at the k-th transaction of a job of three members with a retry, on a real Consul.

``tests/unit/jobs`` tries every k in virtual time; here processes and packets are real. Whoever finishes the
job comes to the same end, counts the retry once, and runs no slot again that ended well.
"""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from farmd.commands.mutation import Call, commit
from farmd.jobs.commands import JOB, run_of
from farmd.runtime.clock import SystemIds
from store.features import JOBS, PROCESS
from store.jobs import KIND, Run
from store.pods import Place
from store.reality import Exit, Health, Intent, Reality
from tests.fault.falling import FATES, Fate, healthy, world_on
from tests.fault.farm_process import Nursery
from tests.fault.invariants import violations
from tests.fleet import CLOCK, eventually
from tests.job_fleet import document

FAILS = "bert-worker-1~0"
STEPS = 5
"""A job of three members has no fewer: place, take ends in, place again, its end."""


def tell(place: Place, intent: Intent, index: int) -> Reality:
    """Each member ends at once: well, but for the first attempt of one."""
    code, now = 137 if place[1] == FAILS else 0, CLOCK.now()
    health = Health("critical" if code else "passing", now)
    return replace(healthy(place, intent, index), phase="done", exits=[Exit(now, code)], health=health)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "fate"), [(k, FATES[k % len(FATES)]) for k in range(1, STEPS + 1)])
async def test_r12_a_farm_that_falls_away_in_the_middle_of_a_job_changes_nothing_about_its_end(
    consul_dev: str, nursery: Nursery, k: int, fate: Fate
) -> None:
    async with world_on(consul_dev, nursery, (KIND,), tell) as world:
        cluster = world.cluster
        await cluster.add_nodes({"n1": {}, "n2": {}}, PROCESS, JOBS)
        call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")
        spec = JOB.file.parse(document(worker={"replicas": 3, "restart": "exit-code"}), "bert.yaml")
        hold = world.hold(KIND, k, answer="answered" in fate)
        created = await JOB.create(call, spec)
        await commit(call, created)

        job = (await JOB.records(cluster.client, cluster.keys).find("bert")).record

        async def over() -> Run | None:
            run = await run_of(call, job)
            return run if run.outcome else None

        async def ended() -> None:
            run = await eventually(over, what="the end of the job")
            assert (run.outcome, run.restarts, run.done) == ("succeeded", 1, {"worker": "0-2"})

        await world.falls(fate, hold, ended)
        started = Counter(place[1] for place, _ in world.agents.started)
        assert started == dict.fromkeys([FAILS, "bert-worker-0~0", "bert-worker-1~1", "bert-worker-2~0"], 1)
        assert violations(await cluster.dump()) == []
