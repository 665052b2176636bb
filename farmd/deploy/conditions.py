"""How far services are that a deployment waits for and does not change."""

from __future__ import annotations

from farmd.deploy.attempts import min_healthy_time
from farmd.deploy.decide_types import Condition
from farmd.pods.state import PodState, observed
from farmd.work.context import Context
from store.deployments import Deployment, DeploymentState
from store.errors import NotFound, RecordInvalid
from store.reality import Glance
from store.services import Service, ServiceStore


async def met(
    context: Context, record: Deployment, state: DeploymentState
) -> frozenset[tuple[str, Condition]]:
    """The conditions of other services that hold now; asked as long as a goal waits to be taken."""
    own = {goal.name for goal in record.goals}
    waiting = [goal for goal in record.goals if goal.service not in state.goals]
    names = {name for goal in waiting for name in goal.after} - own
    found = set[tuple[str, Condition]]()
    for name in sorted(names):
        try:
            stored, _ = await ServiceStore(context.client, context.keys).named(name)
        except RecordInvalid:
            continue
        if stored is not None:
            found |= {(name, condition) for condition in await _holding(context, stored.record)}
    return frozenset(found)


async def _holding(context: Context, service: Service) -> set[Condition]:
    """What holds of a service's pods, whoever owns them."""
    least, wanted = 0.0, 1
    if (version := service.version) is not None:
        wanted = version.replicas if version.mode == "replicated" else 1
        try:
            least = min_healthy_time(await context.manifests.get(version.manifest), version)
        except (NotFound, RecordInvalid):
            return set()
    pods: list[PodState] = []
    for reference in service.active:
        owner = reference.partition("/")[2]
        pods += observed(context.fleet, owner, least, context.clock.mono()).values()
    available = sum(pod.available for pod in pods)
    whole = bool(pods) and available == len(pods) >= wanted
    found: set[Condition] = {"healthy"} if whole else set()
    found |= {"started"} if pods and all(pod.over or pod.reality is not None for pod in pods) else set()
    done = whole and all(
        pod.over or (isinstance(pod.reality, Glance) and pod.reality.phase == "done") for pod in pods
    )
    return found | ({"completed"} if done else set())
