"""R14: another version in place of one that is coming, in whole fleets on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.commands.mutation import Mutation
from farmd.replication.commands import RC
from farmd.rollout import commands
from store.errors import Conflict
from tests.people import hello
from tests.stateful.rolling import Rolling
from tests.stateful.scene import Scene

BAD = {"progress_deadline": 60}


@pytest.fixture
def rolling(scene: Scene) -> Rolling:
    return Rolling(scene)


def superseding(rolling: Rolling, version: int, **fields: Any) -> Mutation | None:
    """A person's file with another version, whose pods are well."""
    for agent in rolling.scene.agents.values():
        for instance in list(agent.sick):
            agent.ail(instance, sick=False)
    file = hello(**rolling.fields | fields, pod_command=["sleep", str(version)])
    spec = RC.file.parse(file, "test")
    return rolling.ask(lambda: RC.update(rolling.scene.call, spec, now=False, supersede=True))


def sicken(rolling: Rolling) -> None:
    """Whatever comes from now on fails its check."""
    assert rolling.rollout is not None
    for node, instance in rolling.scene.places(rolling.rollout.new):
        rolling.scene.agents[node].ail(instance, sick=True)


POLICIES = [
    {"stages": ["50%", "100%"], "minimum": 4},
    {"stages": [2, {"to": "100%", "bake": 5}]},
    {"strategy": "availability", "stages": ["50%", "100%"]},
    {"strategy": "resourceutil", "stages": ["50%", "100%"]},
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("back", [False, True])
def test_r14_a_fix_takes_the_place_of_a_bad_version(
    rolling: Rolling, policy: dict[str, Any], back: bool
) -> None:
    rollout = rolling.begin(**policy, **BAD)
    rolling.until(lambda: len(rolling.scene.places(rollout.new)) >= 2)
    sicken(rolling)
    if back:
        rolling.ask(lambda: commands.revert(rolling.scene.call, "web"))
        rolling.until(lambda: rolling.state and rolling.state.back)
    assert superseding(rolling, 20) is not None
    fixed = rolling.rollout
    assert fixed is not None
    assert (fixed.id, fixed.new, fixed.superseded) == (rollout.id, rollout.new, [rollout.to_manifest])
    rolling.whole("done")
    (rc,) = rolling.scene.sight.rcs.values()
    assert rc.manifest == fixed.to_manifest
    assert {pod.manifest for pod in rolling.scene.sight.pods.values()} == {fixed.to_manifest}


def test_r14_the_way_back_leads_to_the_first_good_version(rolling: Rolling) -> None:
    rollout = rolling.begin(stages=["50%", "100%"], **BAD)
    rolling.until(lambda: len(rolling.scene.places(rollout.new)) >= 2)
    assert superseding(rolling, 20) is not None
    rolling.until(lambda: rolling.state and rolling.state.superseded == 1)
    assert superseding(rolling, 30) is not None
    rolling.until(lambda: rolling.state and rolling.state.superseded == 2)
    rolling.ask(lambda: commands.revert(rolling.scene.call, "web"))
    rolling.whole("reverted")
    (rc,) = rolling.scene.sight.rcs.values()
    assert rc.manifest == rollout.from_manifest


def test_r14_while_it_rests_or_waits_no_worker_of_a_controller_changes_versions(rolling: Rolling) -> None:
    stages = [{"to": 2, "bake": 600}, "100%"]
    rollout = rolling.begin(stages=stages)
    rolling.until(lambda: rolling.state and rolling.state.phase == "baking")
    rolling.ask(lambda: commands.pause(rolling.scene.call, "web"))
    assert superseding(rolling, 20) is not None
    rolling.scene.advance(30.0)
    rolling.scene.check()
    there = [pod for key, pod in rolling.scene.sight.pods.items() if rollout.new in str(key)]
    assert {pod.manifest for pod in there} == {rollout.to_manifest}


def test_r14_a_version_is_superseded_by_name_only(rolling: Rolling) -> None:
    rollout = rolling.begin(stages=[1, {"to": "100%", "approve": True}])
    spec = RC.file.parse(hello(**rolling.fields, pod_command=["sleep", "20"]), "test")
    with pytest.raises(Conflict, match="has a rollout already, to version"):
        rolling.scene.run(RC.update(rolling.scene.call, spec, now=False))
    assert rolling.rollout is not None
    assert rolling.rollout.to_manifest == rollout.to_manifest


@pytest.mark.parametrize(
    "policy",
    [
        {"strategy": "availability", "stages": [2, "100%"]},
        {"strategy": "availability", "stages": [2, "100%"], "tolerate": 1},
        {"strategy": "resourceutil", "stages": [2, "100%"]},
        {"stages": [2, "100%"]},
    ],
)
def test_r14_a_healthy_version_is_superseded_once_old_pods_have_left_for_it(
    rolling: Rolling, policy: dict[str, Any]
) -> None:
    """Nothing is left above the floor then, so the fix comes before what it replaces goes."""
    two, *rest = policy["stages"]
    rollout = rolling.begin(**policy | {"stages": [{"to": two, "bake": 30}, *rest]})
    rolling.until(lambda: rolling.state and rolling.state.phase == "baking")
    assert superseding(rolling, 20) is not None
    rolling.whole("done")
    (rc,) = rolling.scene.sight.rcs.values()
    assert rc.manifest != rollout.to_manifest


@pytest.mark.parametrize("strategy", ["availability", "resourceutil", "rolling"])
@pytest.mark.parametrize("to", [1, "50%"])
def test_r14_a_stage_has_as_many_new_pods_as_before_however_often_its_version_is_superseded(
    rolling: Rolling, strategy: str, to: int | str
) -> None:
    rollout = rolling.begin(strategy=strategy, stages=[to, {"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).asks)
    before = [len(rolling.scene.places(side)) for side in (rollout.new, rollout.old)]
    for times in (1, 2, 3):
        assert superseding(rolling, 20 + times) is not None
        rolling.until(lambda times=times: rolling.state and rolling.state.superseded == times)  # type: ignore[misc]
        rolling.until(lambda: rolling.said(rollout.id).asks, 300)
        rolling.scene.advance(10.0)
        assert [len(rolling.scene.places(side)) for side in (rollout.new, rollout.old)] == before
