"""A change of all statuses at once floods neither the store nor the connections that writes of pods need."""

from __future__ import annotations

from farmd.work.context import STATUSES_AT_ONCE
from store.consul.transport import POOL_SIZES
from store.ports import Lane, Request, Response
from store.rcs import ReplicationController
from tests.node_farms import KEYS, Fleet

RCS = 200


async def test_statuses_that_all_change_are_written_a_few_at_a_time() -> None:
    fleet = Fleet()
    farm = await fleet.start("a", kinds=("rcs",))
    writing, most = 0, 0

    async def slow(request: Request) -> None:
        nonlocal writing, most
        if b'"Key":"farmd/status/' in request.body:
            writing += 1
            most = max(most, writing)
            await fleet.clock.sleep(0.2)

    async def done(request: Request, _: Response) -> None:
        nonlocal writing
        writing -= b'"Key":"farmd/status/' in request.body

    farm.faults.before, farm.faults.after = slow, done
    for number in range(RCS):
        item = fleet.ids.new()
        rc = ReplicationController(id=item, name=f"n{number}", manifest="m", replicas_desired=0)
        await fleet.put(KEYS.record("rcs", item), rc)
    await fleet.clock.advance(60.0)
    await fleet.end("a")
    told = await fleet.client.list(KEYS.status("rcs", ""))
    assert len(told.items) == RCS
    assert 1 < most <= STATUSES_AT_ONCE < POOL_SIZES[Lane.WRITE]
