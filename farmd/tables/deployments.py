"""What the page adds to the description of a deployment: the pods of the services that change now."""

from __future__ import annotations

import asyncio

from farmd.commands.mutation import Call
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.view import pods_of
from farmd.tables.model import Details
from farmd.tables.pods import pod_table
from store.deployments import Deployment

# A page reads the pods of so many services.
MOST_SERVICES = 20
_AT_REST = frozenset({"waiting", "released"})


async def besides(call: Call, deployment: Deployment) -> Details:
    """The pods of the services that change now, each with what it waits for."""
    status = (await DEPLOYMENT.row(call, deployment.id)).status
    told = status.services if status is not None else ()
    changing = {each.name for each in told if each.phase not in _AT_REST}
    goals = [goal for goal in deployment.goals if goal.name in changing]
    found = await asyncio.gather(*(pods_of(call, goal) for goal in goals[:MOST_SERVICES]))
    rows = [row for rows in found for row in rows]
    some = f", of {MOST_SERVICES} of {len(goals)} services" if len(goals) > MOST_SERVICES else ""
    title = f"Pods ({len(rows)}{some})"
    return Details(tables={title: pod_table(rows, (), call.clock.now())} if goals else {})
