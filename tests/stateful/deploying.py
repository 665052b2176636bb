"""Services of a fleet on virtual time, and the deployments that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from farmd.deploy.manifest import compiled, of_hook
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from store import codec, manifests, operations
from store.deployments import KIND, Deployment, DeploymentState, DeploymentStatus, Goal
from store.operations import Operation
from store.pods import Pod
from store.rcs import ReplicationController
from store.services import Service, UpdateConfig, Version
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

FIRST, SECOND, BAD = "web:1", "web:2", "web:bad"


def spec(name: str = "web", image: str = FIRST, **fields: Any) -> ServiceSpec:
    """A service of three pods, which are available once they have run for 2 s."""
    inside = fields.pop("container", {})
    update = UpdateConfig(**({"monitor": 2.0} | fields.pop("update", {})))
    told = {"replicas": 3} | fields
    return ServiceSpec(name=name, container=ContainerSpec(image=image, **inside), update=update, **told)


@dataclass
class Deploying:
    """A fleet whose services are deployed, without ``farmctl``."""

    scene: Scene
    machines: int = 5
    farms: Sequence[str] = ("ash", "birch")
    versions: dict[str, Version] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scene.nodes(self.machines)
        for farm in self.farms:
            self.scene.farm(farm)

    # -- people --------------------------------------------------------------------------------
    def deploy(self, *wanted: ServiceSpec, gone: Iterable[str] = (), **fields: Any) -> str:
        """Submit a deployment of these services; its id. ``goals`` are fields of goals by name."""
        ident, told = self.scene.ids.new(), fields.pop("goals", {})
        ops, goals = list[Operation](), list[Goal]()
        for each in wanted:
            made, version = compiled(each)
            ops.append(manifests.ensure(KEYS, manifests.canonical(made)))
            goals.append(self._goal(each.name, version, ident, ops, told))
        goals += [self._goal(name, None, ident, ops, told) for name in gone]
        record = Deployment(
            id=ident, name=f"d-{ident[:6]}", goals=goals, by="user/ada", at=self.scene.clock.now(),
            needs=["deploy.1"], **fields,
        )  # fmt: skip
        ops += [
            operations.create(KEYS.record(KIND, ident), codec.encode(record)),
            operations.create(KEYS.name(KIND, record.name), codec.encode(ident)),
        ]
        self.scene.run(self.scene.hand.transaction(ops))
        return ident

    def _goal(self, name: str, version: Version | None, ident: str, ops: list[Operation], told: Any) -> Goal:
        known = self.scene.sight.services.get(name)
        if known is None:
            assert version is not None
            known = Service(id=self.scene.ids.new(), name=name, mode=version.mode, deployment=ident)
            ops.append(operations.create(KEYS.name("services", name), codec.encode(known.id)))
        ops.append(
            operations.put(KEYS.record("services", known.id), codec.encode(replace(known, deployment=ident)))
        )
        family = "daemonsets" if known.mode == "global" else "rcs"
        owner = known.active[0] if known.active else f"{family}/{self.scene.ids.new()}"
        return Goal(
            service=known.id, name=name, owner=owner, wanted=version, previous=known.version,
            **told.get(name, {}),
        )  # fmt: skip

    def say(self, ident: str, **fields: Any) -> None:
        """Change a deployment's record, as a command would."""
        found = self.record(ident)
        assert found is not None
        self.scene.put(KEYS.record(KIND, ident), codec.encode(replace(found, **fields)))

    def supersede(self, first: str, second: str) -> None:
        """Let the second deployment have the services of the first one."""
        found, heir = self.record(first), self.record(second)
        assert found is not None
        assert heir is not None
        names = {goal.name for goal in heir.goals}
        goals = [replace(goal, superseded=second) if goal.name in names else goal for goal in found.goals]
        self.say(first, goals=goals)

    def break_(self, *images: ServiceSpec, lives: float = 0.2) -> None:
        """Pods of these services end soon after each start, on every machine."""
        for each in images:
            for agent in self.scene.agents.values():
                agent.lives[compiled(each)[1].manifest] = lives

    def hook(self, of: ServiceSpec) -> str:
        """The digest of what a service's hook runs."""
        assert of.pre_deploy is not None
        made = of_hook(compiled(of)[0], of.pre_deploy)
        return manifests.digest(manifests.canonical(made))

    def ends(self, manifest: str, code: int) -> None:
        """Pods of a manifest end for good, a second after their start, with that code."""
        for agent in self.scene.agents.values():
            agent.ends[manifest] = code

    def runs(self, manifest: str) -> int:
        """How often agents started a manifest."""
        return sum(agent.starts[manifest] for agent in self.scene.agents.values())

    # -- what there is -------------------------------------------------------------------------
    def record(self, ident: str) -> Deployment | None:
        return self._read(Deployment, KEYS.record(KIND, ident))

    def status(self, ident: str) -> DeploymentStatus:
        return self._read(DeploymentStatus, KEYS.status(KIND, ident)) or DeploymentStatus(state="")

    def state(self, ident: str) -> DeploymentState:
        work = self.scene.sight.work.get(f"{KIND}/{ident}")
        return (work.deployment if work is not None else None) or DeploymentState()

    def _read(self, kind: Any, key: str) -> Any:
        entry = self.scene.read(key)
        return None if entry is None else codec.decode(kind, entry.value, key)

    def service(self, name: str = "web") -> Service:
        return self.scene.sight.services[name]

    def owner(self, name: str = "web") -> Any:
        found = {
            each.name: each
            for each in (*self.scene.sight.rcs.values(), *self.scene.sight.daemonsets.values())
        }
        return found.get(f"svc-{name}")

    def pods(self, name: str = "web") -> dict[tuple[str, str], Pod]:
        owner = self.owner(name)
        return self.scene.sight.pods_of(owner.id) if owner is not None else {}

    def serving(self, name: str = "web") -> int:
        return sum(self.scene.sight.serves(place, pod) for place, pod in self.pods(name).items())

    def endings(self, ident: str) -> list[str]:
        """How it ended, as the audit says."""
        ends = ("done", "reverted", "stale", "abandoned")
        found = [audit.action for _, audit in self.scene.sight.dump.audits if audit.id == ident]
        return [action for action in found if action.removeprefix("deployment.") in ends]

    # -- time ----------------------------------------------------------------------------------
    def until(self, so: Callable[[], object], seconds: float = 200.0, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            if so():
                return
            self.scene.advance(step)
            self.scene.check()
        told = [entry.value for entry in self.scene.under(KEYS.tree("status/deployments")).values()]
        story = "\n".join([*self.scene.witness.story, *self.scene.logged[-20:]])
        raise AssertionError(f"never came true; {told}\n{story}")

    def ended(self, ident: str, outcome: str = "done", seconds: float = 200.0) -> None:
        """It is over, once, nothing is left of it, and owners are nobody's but their workers'."""
        self.until(lambda: self.endings(ident), seconds)
        self.scene.advance(10.0)
        self.scene.check()
        assert self.endings(ident) == [f"deployment.{outcome}"]
        sight = self.scene.sight
        for left in (KIND, f"names/{KIND}", f"work/{KIND}", f"status/{KIND}"):
            assert (left, sight.under(left)) == (left, [])
        for owner in (*sight.rcs.values(), *sight.daemonsets.values()):
            assert (owner.managed_by, owner.taken) == ("", False)
        assert not any(service.deployment for service in sight.services.values())

    def whole(self, of: ServiceSpec) -> None:
        """A service is what its spec says, in all records, and its pods serve."""
        version, service, owner = compiled(of)[1], self.service(of.name), self.owner(of.name)
        assert (service.version, service.active) == (version, [f"rcs/{owner.id}"])
        assert isinstance(owner, ReplicationController)
        assert (owner.manifest, owner.replicas_desired) == (version.manifest, of.replicas)
        assert owner.part_of == f"services/{service.id}"
        assert {pod.manifest for pod in self.pods(of.name).values()} == {version.manifest}
        assert self.serving(of.name) == of.replicas
