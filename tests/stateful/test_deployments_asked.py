"""Deployments as people ask for them: what was planned for a person is what the farms carry out."""

from __future__ import annotations

import pytest

from farmd.commands.mutation import Call, Mutation, commit
from farmd.deploy.commands import Deployment
from farmd.deploy.manifest import compiled
from farmd.deploy.project import ResolvedServices
from farmd.deploy.spec import ServiceSpec, VolumeMount, VolumeSpec
from farmd.doctor import fixes
from farmd.doctor.examine import examine
from farmd.nodes import commands as nodes
from store import codec
from store.services import Service
from tests.stateful.deploying import BAD, FIRST, SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def ask(deploying: Deploying, *specs: ServiceSpec, removed: tuple[str, ...] = (), together: str = "") -> str:
    """Plan and submit these services of the project shop; the deployment's id."""
    wanted = ResolvedServices(
        services={each.name: each for each in specs}, removed=removed, together=together
    )
    made = Deployment(call=deploying.scene.call, wanted=wanted, project="shop")
    deploying.scene.run(made.plan())
    return str(deploying.scene.run(made.submit()).change.id)


def test_services_come_change_and_go_as_they_were_planned(deploying: Deploying) -> None:
    mounts = {"mounts": [VolumeMount(volume="data", path="/data")]}
    db = spec("db", replicas=1, container=mounts, volumes=[VolumeSpec(name="data")])
    deploying.ended(ask(deploying, db, spec()))
    deploying.whole(spec())
    assert len(deploying.pods("db")) == 1
    deploying.ended(ask(deploying, db, spec(image=SECOND, update={"parallelism": 2})))
    deploying.whole(spec(image=SECOND, update={"parallelism": 2}))
    deploying.ended(ask(deploying, spec(image=SECOND, replicas=5), removed=("db",)))
    assert set(deploying.scene.sight.services) == {"web"}
    deploying.whole(spec(image=SECOND, replicas=5))


def test_what_stands_together_stands_on_one_machine(deploying: Deploying) -> None:
    deploying.ended(ask(deploying, spec("db", replicas=1), spec(replicas=1), together="shop"))
    assert {node for node, _ in deploying.pods("db")} == {node for node, _ in deploying.pods()}
    deploying.ended(ask(deploying, spec("db", replicas=1), spec(image=SECOND, replicas=1), together="shop"))
    assert {node for node, _ in deploying.pods("db")} == {node for node, _ in deploying.pods()}


@pytest.mark.parametrize("trouble", ["drained", "lost"])
def test_what_stays_together_moves_together(deploying: Deploying, trouble: str) -> None:
    scene = deploying.scene
    services = [spec(name, replicas=1) for name in ("db", "api", "web")]
    deploying.ended(ask(deploying, *services, together="shop"))

    def machines() -> set[str]:
        return {node for each in services for node, _ in deploying.pods(each.name)}

    (left,) = machines()
    if trouble == "drained":
        assert scene.ask(lambda: nodes.drain(scene.call, left, 3600.0)) is not None
    else:
        scene.run(scene.agents[left].die(at_once=True))
    deploying.until(lambda: left not in machines() and all(deploying.serving(s.name) for s in services))
    assert len(machines()) == 1


@pytest.mark.parametrize("image", [FIRST, SECOND, BAD], ids=["as it was", "another version", "a bad version"])
def test_a_deployment_takes_back_what_bears_the_mark_of_its_lost_service(
    deploying: Deploying, image: str
) -> None:
    """``doctor --fix`` removes a service's record that does not decode; its pods run on meanwhile."""
    scene = deploying.scene
    deploying.ended(ask(deploying, spec()))
    service, owner, before = deploying.service().id, deploying.owner().id, set(deploying.pods())
    scene.put(KEYS.record("services", service), b"{")
    for mutation in scene.run(fixed(scene.call, f"services/{service}")):
        scene.run(commit(scene.call, mutation))
    deploying.break_(spec(image=BAD))
    deploying.ended(ask(deploying, spec(image=image)), "reverted" if image == BAD else "done")
    assert (deploying.service().id, deploying.owner().id) == (service, owner)
    assert deploying.serving() == 3
    kept = compiled(spec(image=FIRST if image == BAD else image))[1]
    assert {pod.manifest for pod in deploying.pods().values()} == {kept.manifest}
    assert deploying.service().version is not None
    assert deploying.service().version.manifest == kept.manifest
    assert image != FIRST or set(deploying.pods()) == before, "nothing is replaced that fits"


async def fixed(call: Call, target: str) -> list[Mutation]:
    report = await examine(call.client, KEYS, call.clock)
    return await fixes.mutations(call, fixes.choose(report.findings, [target]))


def test_the_audit_names_other_services_that_lose_the_owner_of_one_that_goes(deploying: Deploying) -> None:
    scene = deploying.scene
    deploying.ended(ask(deploying, spec(), spec("db")))
    owners = [f"rcs/{deploying.owner(name).id}" for name in ("web", "db")]
    both = Service(id="0f", name="both", active=owners)
    scene.put(KEYS.record("services", "0f"), codec.encode(both))
    ident = ask(deploying, removed=("web",))
    deploying.ended(ident)
    assert deploying.service("both").active == owners[1:]
    (told,) = [audit for _, audit in scene.sight.dump.audits if audit.action == "deployment.release"][2:]
    assert (told.id, told.before, told.after["services"]) == (ident, {"services": "both"}, "")


def test_the_duration_is_counted_once_whatever_transaction_has_no_answer(deploying: Deploying) -> None:
    """The farm often sees by its watch that the record is gone before it knows that it deleted it itself."""
    scene, counted = deploying.scene, ("farmd_deployment_duration_seconds", "done")
    farm, *others = [each for each in scene.farms.values() if each.alive]
    for other in others:
        scene.run(other.stop())
    for at in range(6):
        farm.line.heal()
        farm.line.spoil(at, "unanswered")
        before = farm.farm.recorder.counts[counted]
        deploying.ended(ask(deploying, spec(image=SECOND if at % 2 else FIRST, replicas=1)))
        assert farm.farm.recorder.counts[counted] == before + 1, f"transaction {at} had no answer"
