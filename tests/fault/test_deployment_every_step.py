"""A farm killed or stopped at exactly the k-th transaction of a deployment, both ways.

The first transaction, the last and a tenth of the others; ``tests/stateful`` takes each of them.

The deployment makes a volume and a service that mounts it, runs a hook, replaces pods beside the old ones and
where they stand, those of a global service too, and takes a service away; its way back follows from a version
that fails. Whoever finishes it comes to the same end, and no version of the store that any transaction made
breaks a rule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from farmd.commands.mutation import Call
from farmd.deploy.commands import Deployment
from farmd.deploy.manifest import compiled
from farmd.deploy.project import ResolvedServices
from farmd.deploy.resolver import ServiceSpecResolver
from farmd.deploy.spec import ContainerSpec, Placement, ServiceSpec, VolumeMount, VolumeSpec
from farmd.doctor.examine import examine
from farmd.runtime.clock import SystemIds, system_rng
from store.deployments import KIND
from store.named import Owner
from store.nodes import Node
from store.pods import Place
from store.reality import Exit, Health, Intent, Reality
from store.services import Hook, Service, UpdateConfig
from tests.fault.deploy_rules import broken
from tests.fault.falling import FATES, Fate, World, healthy, world_on
from tests.fault.farm_process import Nursery
from tests.fault.invariants import Dump, violations
from tests.fault.rig import a_tenth, every_k
from tests.fault.versions import versions
from tests.fleet import CLOCK, eventually

KINDS = ("rcs", "daemonsets", KIND)
AT_ONCE = 8
FLOORS = {"svc-web": 2, "svc-api": 1, "svc-db": 0, "svc-old": 0, "svc-log": 1}
STOP_FIRST = {"order": "stop-first"}


def spec(name: str, version: int, replicas: int, **fields: Any) -> ServiceSpec:
    """A service whose pods are available as soon as they run."""
    inside, update = fields.pop("container", {}), fields.pop("update", {})
    container = ContainerSpec(image=f"{name}@sha256:{str(version) * 64}", **inside)
    update = UpdateConfig(**({"monitor": 0.0} | update))
    made = ServiceSpec(name=name, container=container, replicas=replicas, update=update, **fields)
    return ServiceSpecResolver(system_rng()).resolve(made)


GLOBAL = {"mode": "global", "placement": Placement(machines=["n0"])}
FIRST = {
    "web": spec("web", 1, 2),
    "api": spec("api", 1, 2, update=STOP_FIRST),
    "log": spec("log", 1, 1, **GLOBAL),
    "old": spec("old", 1, 1),
}
DATA = {
    "volumes": [VolumeSpec(name="data")],
    "container": {"mounts": [VolumeMount(volume="data", path="/data")]},
}
SECOND = {
    "db": spec("db", 1, 1, **DATA),
    "web": spec("web", 2, 2, pre_deploy=Hook(command=["migrate"])),
    "api": spec("api", 2, 2, update=STOP_FIRST),
    "log": spec("log", 2, 1, **GLOBAL),
}
BAD = compiled(SECOND["api"])[1].manifest


@dataclass
class Way:
    """Forward, or ``back`` because the version that comes last fails."""

    back: bool

    def tell(self, place: Place, intent: Intent, index: int) -> Reality:
        """Hooks end well, and pods of the version that fails end again and again."""
        seen, now = healthy(place, intent, index), CLOCK.now()
        if place[1].endswith("-hook~0"):
            return replace(seen, phase="done", exits=[Exit(now, 0)])
        if self.back and intent.manifest == BAD:
            ended = Health("critical", now)
            return replace(seen, phase="backoff", restarts=2, exits=[Exit(now, 1)], health=ended)
        return seen

    @property
    def outcome(self) -> str:
        return "reverted" if self.back else "done"

    @property
    def end(self) -> dict[str, ServiceSpec]:
        """What there is in the end."""
        return FIRST if self.back else SECOND


WAYS = {"forward": Way(back=False), "back": Way(back=True)}


@dataclass
class Case:
    """One deployment in one world."""

    world: World
    way: Way
    ident: str = field(init=False)

    async def begin(self) -> None:
        """The services stand in their first version, then the deployment is submitted."""
        await self.world.cluster.add_nodes({f"n{number}": {} for number in range(4)}, "runtime.container")
        await self.over(await self.submit(ResolvedServices(services=FIRST)), "done")

    async def go(self) -> None:
        after = {"api": {"web": "healthy", "db": "healthy", "log": "healthy"}}
        self.ident = await self.submit(
            ResolvedServices(services=SECOND, after=after, removed=["old"]), atomic=True
        )

    async def submit(self, wanted: ResolvedServices, **fields: Any) -> str:
        cluster = self.world.cluster
        call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")
        deployment = Deployment(call=call, wanted=wanted, project="shop", **fields)
        await deployment.plan()
        return (await deployment.submit()).change.id

    async def over(self, ident: str, outcome: str) -> Dump:
        """It is over, once, as it should be."""

        async def so() -> Dump | None:
            dump = await self.world.cluster.dump()
            return dump if ends(dump, ident) else None

        try:
            dump: Dump = await eventually(so, what="the end of the deployment")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.world.story(KIND)}") from None
        assert ends(dump, ident) == [f"deployment.{outcome}"]
        return dump

    async def ended(self) -> None:
        """All is as if nothing had fallen away."""
        dump = await self.over(self.ident, self.way.outcome)
        services = {each.name: each for _, each in dump.tree("services", Service).values()}
        owners = {each.name: each for each in dump.owners.values()}
        assert services.keys() == self.way.end.keys()
        assert owners.keys() == {f"svc-{name}" for name in services}
        for name, wanted in self.way.end.items():
            self.whole(dump, services[name], owners[f"svc-{name}"], wanted)
        places = {place[0] for place in dump.pods}
        assert places == {each.id for each in owners.values()}
        volumes = [name for _, node in dump.tree("nodes", Node).values() for name in node.volumes]
        assert volumes == ["data"]
        for left in (KIND, f"names/{KIND}", f"work/{KIND}", f"status/{KIND}"):
            assert await self.world.cluster.entries(dump.keys.tree(left)) == {}

    def whole(self, dump: Dump, service: Service, owner: Owner, wanted: ServiceSpec) -> None:
        """A service is what its spec says, and nobody holds it."""
        assert service.version is not None
        family = "daemonsets" if wanted.mode == "global" else "rcs"
        assert (service.deployment, service.active) == ("", [f"{family}/{owner.id}"])
        assert (owner.managed_by, owner.taken) == ("", False)
        assert service.version.manifest == owner.manifest == compiled(wanted)[1].manifest
        pods = [pod.manifest for place, (_, pod) in dump.pods.items() if place[0] == owner.id]
        assert pods == [owner.manifest] * wanted.replicas
        turned = ["done"] if service.name in ("db", "old") else [self.way.outcome, "done"]
        assert [each.result for each in service.history] == turned

    async def judge(self) -> None:
        """No version broke a rule, the hook ran once, and nothing is left over."""
        cluster, world = self.world.cluster, self.world
        dump = await cluster.dump()
        assert violations(dump) == []
        found = versions(dump, world.sent)
        assert list(broken(cluster.keys, found, world.agents.served, FLOORS)) == []
        hooks = [place for place, _ in world.agents.started if place[1].endswith("-hook~0")]
        assert len(hooks) == 1
        turns = Counter(audit.action for _, audit in dump.audits if audit.id == self.ident)
        assert turns["deployment.hook"] == 2
        report = await examine(cluster.client, cluster.keys, CLOCK)
        kept = {"volume-of-nobody"} if self.way.back else set()  # nobody but people throws data away
        codes = {each.code for each in report.findings}
        assert codes - {"kind-unclaimed", "no-farm"} == kept, report.findings


def ends(dump: Dump, ident: str) -> list[str]:
    """How a deployment ended, as the audit has it."""
    words = {f"deployment.{word}" for word in ("done", "reverted", "stale", "abandoned")}
    return [audit.action for _, audit in dump.audits if audit.id == ident and audit.action in words]


async def fallen(k: int, fate: Fate, name: str, consul: str, nursery: Nursery) -> int:
    """One case; how many transactions of the deployment came."""
    way = WAYS[name]
    try:
        async with world_on(consul, nursery, KINDS, way.tell) as world:
            case = Case(world, way)
            await case.begin()
            since = "deployment.back" if way.back else ""  # what comes before is as on the way forward
            hold = world.hold(KIND, k, answer="answered" in fate, since=since)
            await case.go()
            count = await world.falls(fate, hold, case.ended)
            await case.judge()
            return count
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{fate}, {name}, k={k}: {error}") from error


@pytest.mark.parametrize("name", list(WAYS))
async def test_r12_a_farm_that_falls_away_at_any_transaction_changes_nothing_about_the_end(
    consul_dev: str, nursery: Nursery, name: str
) -> None:
    """The fates take turns."""
    turn = len(name)
    steps = await every_k(
        lambda k: fallen(k, FATES[(turn + k) % len(FATES)], name, consul_dev, nursery), AT_ONCE, a_tenth
    )
    assert steps > 10
