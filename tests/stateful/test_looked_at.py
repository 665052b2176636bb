"""Evidence that comes up between two looks of a guard holds what only leaves, too (R19)."""

from __future__ import annotations

from collections.abc import Callable

from tests.stateful.deploying import SECOND, Deploying, spec
from tests.stateful.rolling import REPLICAS, Rolling
from tests.stateful.scene import Scene

DOUBT = "a doubt that began this very moment"


def doubt(scene: Scene, kind: str, begun: Callable[[], object]) -> None:
    """Let the farm's guard of a kind find evidence as soon as that has begun."""
    farm = scene.farms["ash"].farm
    assert farm is not None
    (guard,) = (loop.kind.guard for loop in farm.loops if loop.kind.name == kind)  # type: ignore[attr-defined]
    guard.evidence.append(lambda: DOUBT if begun() else None)


def test_r19_old_pods_that_only_leave_stay_while_there_is_evidence(scene: Scene) -> None:
    rolling = Rolling(scene, farms=["ash"])
    rollout = rolling.begin(strategy="availability", stages=["100%"])

    def whole() -> bool:
        pods = scene.sight.pods_of(rollout.new)
        return sum(scene.sight.serves(place, pod) for place, pod in pods.items()) == REPLICAS

    doubt(scene, "rollouts", whole)
    rolling.until(whole)
    scene.advance(20.0)
    assert len(scene.places(rolling.old)) == REPLICAS
    assert DOUBT in rolling.said(rollout.id).reason


def test_r19_a_service_keeps_its_pods_while_there_is_evidence(scene: Scene) -> None:
    deploying = Deploying(scene, farms=["ash"])
    deploying.ended(deploying.deploy(spec()))
    before = deploying.pods()
    ident = deploying.deploy(spec(image=SECOND, update={"order": "stop-first"}))
    doubt(scene, "deployments", lambda: deploying.state(ident).goals)
    deploying.until(lambda: deploying.state(ident).goals)
    scene.advance(20.0)
    assert deploying.pods() == before
    assert DOUBT in deploying.status(ident).reason
