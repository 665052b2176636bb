"""The page of a deployment shows how the pods of those services stand that change now."""

from __future__ import annotations

from farmd.tables.deployments import besides
from store import codec
from store.deployments import Deployment, DeploymentStatus, Goal, ServiceProgress
from store.families import DEPLOYMENTS
from store.named import NamedRecords
from tests.people import KEYS, created, person, place


async def test_the_pods_of_services_that_change_now_are_shown_and_of_no_other() -> None:
    async with person() as call:
        owners = {name: await created(call, name=name, pod_id=name) for name in ("shop", "done")}
        for name, owner in owners.items():
            await place(call, owner, "n1", name)
        goals = [Goal(service=owner, name=name, owner=f"rcs/{owner}") for name, owner in owners.items()]
        goals.append(Goal(service="0c", name="new", owner="rcs/00aa"))
        deployment = Deployment(id="0d", name="shop-1", goals=goals)
        store = NamedRecords(call.client, KEYS, DEPLOYMENTS.name, Deployment, "deployment")
        await call.client.transaction(list(store.create(deployment)))
        assert (await besides(call, deployment)).tables == {}
        phases = {"shop": "rolling", "done": "released", "new": "rolling"}
        told = tuple(ServiceProgress(name=name, phase=phase) for name, phase in phases.items())
        status = DeploymentStatus(state="progressing", services=told)
        await call.client.put(KEYS.status("deployments", "0d"), codec.encode(status))
        (table,) = (await besides(call, deployment)).tables.values()
        assert [(row.node, row.instance) for row in table.rows] == [("n1", "shop")]
