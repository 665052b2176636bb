"""R8: a farm that starts takes the locks of all kinds before it reads anything again for its workers."""

from __future__ import annotations

from farmd.farm.locking import LONGEST_REST
from store import registration
from store.ports import Request, Response
from store.rcs import ReplicationController
from tests.node_farms import KEYS, Fleet

RCS, NODES = 200, 40


async def a_fleet() -> Fleet:
    """Controllers and nodes that no farm holds yet."""
    fleet = Fleet()
    await registration.register_cluster(fleet.client, KEYS, fleet.ids)
    await fleet.add(*(f"n{number}" for number in range(NODES)))
    for number in range(RCS):
        item = fleet.ids.new()
        rc = ReplicationController(id=item, name=f"n{number}", manifest="m", replicas_desired=0)
        await fleet.put(KEYS.record("rcs", item), rc)
    return fleet


def takes_rcs(request: Request) -> bool:
    return b'"lock"' in request.body and f'"{KEYS.lock("rcs", "")}'.encode() in request.body


def barrier(request: Request) -> bool:
    return ("consistent", "") in request.params and request.path == f"/v1/kv/{KEYS.tree('agents')}"


async def test_r8_no_kind_reads_for_its_workers_while_another_takes_its_locks() -> None:
    fleet = await a_fleet()
    farm = await fleet.start("a", kinds=("nodes", "rcs"), settle=5.0)
    told: list[str] = []

    async def slow(request: Request) -> None:
        if takes_rcs(request):
            await fleet.clock.sleep(0.3)
        elif barrier(request):
            told.append("read")

    async def taken(request: Request, _: Response) -> None:
        if takes_rcs(request):
            told.append("locked")

    farm.faults.before, farm.faults.after = slow, taken
    await fleet.clock.advance(20.0)
    assert told.count("locked") >= RCS / 31
    assert "read" in told
    assert "read" not in told[: len(told) - told[::-1].index("locked")]
    await fleet.close()


async def test_a_kind_whose_locks_are_not_answered_keeps_no_other_from_its_workers() -> None:
    fleet = await a_fleet()
    farm = await fleet.start("a", kinds=("nodes", "rcs"), settle=5.0)

    async def hang(request: Request) -> None:
        if takes_rcs(request):
            await fleet.clock.sleep(8.0)

    farm.faults.before = hang
    await fleet.clock.advance(4.5 + LONGEST_REST + 1.0)
    loop = next(loop for loop in farm.farm.loops if loop.kind.name == "nodes")
    assert len(loop.supervisor) == NODES
    await fleet.close()
