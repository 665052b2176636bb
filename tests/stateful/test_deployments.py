"""Deployments on virtual time with real farms: what becomes of services, owners, pods and records."""

from __future__ import annotations

import pytest

from tests.stateful.deploying import Deploying, spec
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def test_a_new_service_comes_and_its_owner_keeps_it_afterwards(deploying: Deploying, scene: Scene) -> None:
    ident = deploying.deploy(spec())
    deploying.ended(ident)
    deploying.whole(spec())
    service = deploying.service()
    assert (service.revision, [each.result for each in service.history]) == (1, ["done"])
    assert {pod.labels["deployment"] for pod in deploying.pods().values()} == {ident}
    assert {pod.labels["service_id"] for pod in deploying.pods().values()} == {service.id}
    assert deploying.owner().needs == ["numbered.1", "deploy.1"]
    (gone, *_) = deploying.pods()
    scene.run(scene.agents[gone[0]].die(at_once=True))
    deploying.until(lambda: deploying.serving() == 3 and gone not in deploying.pods())
