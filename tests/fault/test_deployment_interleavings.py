"""What others do at the same time as a deployment, on a real Consul."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from farmd.commands.mutation import Call, commit
from farmd.deploy.commands import Deployment
from farmd.deploy.manifest import compiled
from farmd.deploy.operations import RunContainerOperation
from farmd.deploy.project import ResolvedServices
from farmd.deploy.spec import ContainerSpec, Resources, ServiceSpec
from farmd.nodes import commands as nodes
from farmd.runtime.clock import SystemIds
from store import codec
from store.deployments import KIND
from store.failsafe import Failsafe
from store.manifests import Manifest
from store.nodes import Node
from store.rcs import ReplicationController
from store.services import UpdateConfig
from store.work import Work
from tests.fault.invariants import violations
from tests.fleet import CLOCK, Cluster, cluster_on, eventually, farm_on, start_farm
from tests.obedient import Obedient, obedient

ENDS = {f"deployment.{word}" for word in ("done", "reverted", "stale", "abandoned")}


def spec(version: int, **fields: Any) -> ServiceSpec:
    """A service of two pods that ask for a processor each and are available as soon as they run."""
    container = ContainerSpec(
        image=f"web@sha256:{str(version) * 64}", resources=Resources(cpu_reservation=1.0)
    )
    told = {"replicas": 2, "update": UpdateConfig(monitor=0.0)} | fields
    return ServiceSpec(name="web", container=container, **told)


@dataclass
class Town:
    """Four nodes with room for two pods each, and a service ``web`` that people deploy."""

    cluster: Cluster
    agents: Obedient
    call: Call = field(init=False)

    def __post_init__(self) -> None:
        self.call = Call(self.cluster.client, self.cluster.keys, CLOCK, SystemIds(), "user/ada@test")

    async def planned(self, wanted: ServiceSpec) -> Deployment:
        deployment = Deployment(call=self.call, wanted=ResolvedServices(services={"web": wanted}))
        await deployment.plan()
        return deployment

    async def deploy(self, wanted: ServiceSpec) -> str:
        return (await (await self.planned(wanted)).submit()).change.id

    async def over(self, ident: str) -> str:
        """How the deployment ended."""

        async def ends() -> list[str]:
            found = await self.cluster.audits()
            return [audit.action for audit in found if audit.id == ident and audit.action in ENDS]

        (ending,) = await eventually(ends, what="the end of the deployment")
        return str(ending)

    async def says(self, ident: str, text: str) -> None:
        """The status of the deployment tells people this."""

        async def so() -> bool:
            entry = await self.cluster.client.read(self.cluster.keys.status(KIND, ident))
            return entry is not None and text in entry.value.decode()

        await eventually(so, what=f"the status {text!r}")

    async def owner(self) -> ReplicationController:
        """The controller of the service."""
        found = await self.cluster.entries(self.cluster.keys.tree("rcs"))
        rcs = [codec.decode(ReplicationController, entry.value, key) for key, entry in found.items()]
        return next(rc for rc in rcs if rc.name == "svc-web")

    async def moving(self, owner: ReplicationController) -> bool:
        """Whether its worker is in the middle of a move."""
        entry = await self.cluster.client.read(self.cluster.keys.work("rcs", owner.id))
        return entry is not None and codec.decode(Work, entry.value, entry.key).transfer is not None

    async def changed_by(self, ident: str) -> list[str]:
        """What the deployment did to pods."""
        found = await self.cluster.audits()
        return [each.action for each in found if each.id == ident and (each.placed or each.removed)]


@pytest.fixture
async def town(consul_dev: str) -> AsyncIterator[Town]:
    async with cluster_on(consul_dev) as cluster, obedient(cluster) as agents:
        names = {f"n{number}": {} for number in range(4)}
        await cluster.add_nodes(names, "runtime.container", "process")
        for name in names:
            await cluster.put(cluster.keys.node(name), Node(capacity={"cpu": 2.0}))
        yield Town(cluster, agents)


async def test_r14_while_a_freeze_holds_a_move_that_is_under_way_a_deployment_changes_nothing_and_says_so(
    town: Town,
) -> None:
    cluster, keys = town.cluster, town.cluster.keys
    # Only the test ends the freeze.
    alone = {"kinds": ("rcs", KIND), "thaw_after": 3600.0}
    async with farm_on(cluster.client, "farm-1", keys=keys, **alone) as farm:
        assert await town.over(await town.deploy(spec(1))) == "deployment.done"
        owner = await town.owner()
        standing = await cluster.pods(owner.id)
        town.agents.deaf = set(cluster.nodes)  # what moves takes its time
        await commit(town.call, await nodes.drain(town.call, standing[0][0], 3600.0))
        await eventually(lambda: town.moving(owner), what="a move of the controller's own")
        both = await eventually(lambda: _more(town, owner, 2), what="the new pod of the move")
        frozen = Failsafe(evidence="agents: a test", by="farm/other", since=CLOCK.now())
        await cluster.put(keys.failsafe("rcs"), frozen)
        await eventually(lambda: _seen(farm), what="the freeze in the farm")

        ident = await town.deploy(spec(2))
        await town.says(ident, "waiting until a move of")
        assert await town.moving(owner)
        assert await cluster.pods(owner.id) == both
        assert await town.changed_by(ident) == []

        await cluster.client.delete(keys.failsafe("rcs"))
        town.agents.deaf = set()
        assert await town.over(ident) == "deployment.done"
    now = await town.owner()
    assert (now.manifest, now.managed_by, now.taken) == (compiled(spec(2))[1].manifest, "", False)
    assert not await town.moving(owner)
    after = await cluster.pods(owner.id)
    assert len(after) == 2
    assert standing[0][0] not in {node for node, _ in after}
    assert violations(await cluster.dump()) == []


async def _more(town: Town, owner: ReplicationController, than: int) -> list[tuple[str, str]]:
    found = await town.cluster.pods(owner.id)
    return found if len(found) > than else []


async def _seen(farm: Any) -> bool:
    return bool(farm.metric("farmd_frozen", kind="rcs") == 1)


async def test_others_pods_that_take_the_best_places_after_the_preview_make_no_plan_stale(town: Town) -> None:
    """Of pods that come the fingerprint counts only how many they are."""
    cluster, keys = town.cluster, town.cluster.keys
    first = await start_farm(cluster.client, "farm-1", keys=keys, kinds=("rcs",))
    deployment = await town.planned(spec(1))
    operations = [each for plan in deployment.made.services for each in plan.operations]
    seen = {each.machine for each in operations if isinstance(each, RunContainerOperation)}
    assert len(seen) == 2
    ident = (await deployment.submit()).change.id
    busy = Manifest(id="busy", command=["sleep", "1"], resources={"cpu": 2.0})
    for name in seen:
        rc = await cluster.create_rc(f"busy-{name}", 1, manifest=busy, node_selector=f"node = {name}")
        await eventually(lambda rc=rc: _more(town, rc, 0), what="the pod that fills the machine")
    await first.close()
    async with farm_on(cluster.client, "farm-2", keys=keys, kinds=("rcs", KIND)):
        assert await town.over(ident) == "deployment.done"
    stood = {node for node, _ in await cluster.pods((await town.owner()).id)}
    assert len(stood) == 2
    assert not stood & seen
    assert violations(await cluster.dump()) == []
