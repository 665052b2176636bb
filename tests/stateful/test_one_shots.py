"""A command that ended well is never run again: not by a drain, a lost machine, a way back or a rollback."""

from __future__ import annotations

import pytest

from farmd.deploy import commands
from farmd.deploy.manifest import compiled
from farmd.deploy.spec import ServiceSpec
from farmd.nodes import commands as nodes
from store.manifests import Restart
from tests.stateful.deploying import FIRST, SECOND, Deploying, spec
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def once(image: str = FIRST) -> ServiceSpec:
    return spec("migrate", image=image, replicas=1, container={"restart": Restart(policy="on-failure")})


def sha(of: ServiceSpec) -> str:
    return compiled(of)[1].manifest


def done(deploying: Deploying, of: ServiceSpec) -> None:
    deploying.ends(sha(of), 0)
    deploying.ended(deploying.deploy(of))
    assert deploying.runs(sha(of)) == 1


@pytest.mark.parametrize("trouble", ["drained", "lost"])
def test_what_is_done_leaves_a_node_without_running_elsewhere(deploying: Deploying, trouble: str) -> None:
    scene = deploying.scene
    done(deploying, once())
    ((node, _),) = deploying.pods("migrate")
    if trouble == "drained":
        assert scene.ask(lambda: nodes.drain(scene.call, node, 3600.0)) is not None
        deploying.until(lambda: scene.sight.nodes[node].drain.stage == "done")
    else:
        scene.run(scene.agents[node].die(at_once=True))
        deploying.until(lambda: next(iter(deploying.pods("migrate").values())).done)
    scene.advance(60.0)
    assert deploying.runs(sha(once())) == 1
    assert [pod.done for pod in deploying.pods("migrate").values()] == [True]
    assert scene.status(deploying.owner("migrate").id).state == "converged"


def test_a_way_back_restores_what_is_done_and_runs_nothing(deploying: Deploying) -> None:
    done(deploying, once())
    deploying.ends(sha(once(SECOND)), 1)
    deploying.ended(deploying.deploy(once(SECOND)), "reverted")
    deploying.scene.advance(60.0)
    assert deploying.runs(sha(once())) == 1
    assert {pod.manifest for pod in deploying.pods("migrate").values()} == {sha(once())}


def test_a_rollback_restores_what_is_done_and_runs_nothing(deploying: Deploying) -> None:
    scene = deploying.scene
    done(deploying, once())
    done(deploying, once(SECOND))
    made = scene.run(commands.rolled_back(scene.call, "migrate"))
    deploying.ended(str(scene.run(made.submit()).change.id))
    scene.advance(60.0)
    assert [deploying.runs(sha(once(image))) for image in (FIRST, SECOND)] == [1, 1]
    assert {pod.manifest for pod in deploying.pods("migrate").values()} == {sha(once())}
