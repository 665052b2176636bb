"""Deployments as people ask for them: what was planned for a person is what the farms carry out."""

from __future__ import annotations

import pytest

from farmd.deploy.deployment import Deployment
from farmd.deploy.model import ServiceSpec, VolumeMount, VolumeSpec
from farmd.deploy.project import Wanted
from tests.stateful.deploying import SECOND, Deploying, spec
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def ask(deploying: Deploying, *specs: ServiceSpec, removed: tuple[str, ...] = (), together: str = "") -> str:
    """Plan and submit these services of the project shop; the deployment's id."""
    wanted = Wanted(services={each.name: each for each in specs}, removed=removed, together=together)
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
