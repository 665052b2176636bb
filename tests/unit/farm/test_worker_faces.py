"""What programs may ask the worker of a controller besides to run."""

from __future__ import annotations

from contextlib import aclosing

from farmd.replication.kind import ReplicationController as Worker
from store import operations
from store.manifests import Manifest, canonical, digest
from store.rcs import ReplicationController
from tests.node_farms import KEYS, fleet_of

RC = "00aa00aa00aa00aa"
BODY = canonical(Manifest(id="web", command=["x"]))


async def test_the_pods_of_a_controller_and_the_outcomes_of_its_cycles() -> None:
    async with fleet_of("n1", "n2") as fleet:
        await fleet.client.transaction([operations.put(KEYS.manifest(digest(BODY)), BODY)])
        farm = (await fleet.start("a", kinds=("rcs",))).farm
        rc = ReplicationController(id=RC, name="web", manifest=digest(BODY), replicas_desired=2, pod_id="web")
        await fleet.put(KEYS.record("rcs", RC), rc)
        await fleet.clock.advance(30.0)
        (loop,) = (each for each in farm.loops if each.kind.name == "rcs")
        worker = loop.supervisor._running[RC].worker
        assert isinstance(worker, Worker)
        assert sorted(worker.current_pods()) == [("n1", "web"), ("n2", "web")]
        async with aclosing(worker.watch_desires()) as outcomes:
            assert (await anext(outcomes)).result == "done"
