"""The strategies of rollouts on a fleet on virtual time: to the end, back, and whoever falls away."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from farmd.housekeeping.facts import DEFAULTS
from farmd.nodes import commands as node_commands
from farmd.rollout import commands
from farmd.services import commands as service_commands
from store.rollouts import KIND, Rollout
from tests.effort import shares, until_over
from tests.stateful.falling import Fall
from tests.stateful.fleet import KEYS
from tests.stateful.rolling import Rolling
from tests.stateful.scene import Scene

POLICIES: list[dict[str, Any]] = [
    {"strategy": "rolling", "stages": [], "ratio": 30},
    {"strategy": "availability", "stages": [], "ratio": 30},
    {"strategy": "availability", "stages": [2, "100%"]},
    {"strategy": "resourceutil", "stages": [], "ratio": 30},
    {"strategy": "resourceutil", "stages": [2, "100%"], "minimum": 4},
    {"strategy": "blue-green", "stages": ["100%"], "keep_old": 5},
]


def served(scene: Scene) -> Rolling:
    """A controller that a service names."""
    rolling = Rolling(scene, pod_ports={"http": {"port": 0}})
    assert rolling.ask(lambda: service_commands.create(scene.call, "shop", "http", ["web"]))
    return rolling


@pytest.mark.parametrize("policy", [POLICIES[2], POLICIES[5]], ids=lambda policy: policy["strategy"])
def test_t8_however_many_services_name_the_controller_each_names_the_new_one_in_the_end(
    scene: Scene, policy: dict[str, Any]
) -> None:
    """People made seventy by hand after the beginning; one transaction has room for thirty."""
    rolling = served(scene)
    rollout = rolling.begin(**{**policy, "keep_old": 60})
    kept = scene.read(KEYS.record("services", rollout.service))
    assert kept is not None
    for number in range(70):
        made = {
            "id": f"{number:016x}",
            "name": f"more-{number}",
            "port": "http",
            "active": [f"rcs/{rolling.old}"],
        }
        scene.put(KEYS.record("services", made["id"]), json.dumps(made).encode())
    rolling.until(lambda: rolling.ended, 400.0)
    names = [
        json.loads(each.value)["active"]
        for key, each in scene.under(KEYS.tree("services")).items()
        if not key.endswith("present")
    ]
    assert (len(names), {tuple(active) for active in names}) == (71, {(f"rcs/{rollout.new}",)})


def halfway(rolling: Rolling, rollout: Rollout) -> bool:
    """Whether it is worth while to go back: after the switch, or with most of the new pods there."""
    if rollout.policy.strategy == "blue-green":
        return rolling.state is not None and rolling.state.switched
    return len(rolling.scene.places(rollout.new)) >= 4


@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["strategy"])
def test_each_strategy_comes_to_its_end(scene: Scene, policy: dict[str, Any], back: bool) -> None:
    rolling = served(scene)
    rollout = rolling.begin(**policy)
    if back:
        rolling.until(lambda: halfway(rolling, rollout))
        assert rolling.ask(lambda: commands.revert(scene.call, "web"))
    rolling.until(lambda: rolling.ended)
    rolling.whole("reverted" if back else "done")


FALLS = [
    (POLICIES[2], "killed", False),
    (POLICIES[2], "late", True),
    (POLICIES[4], "stopped", False),
    (POLICIES[4], "killed unanswered", True),
    (POLICIES[5], "killed", False),
    (POLICIES[5], "killed unanswered", True),
]


@shares
@pytest.mark.parametrize(("policy", "fate", "back"), FALLS)
def test_r12_a_worker_that_falls_away_after_any_transaction_changes_nothing_about_the_end(
    policy: dict[str, Any], fate: str, back: bool, share: int
) -> None:
    assert until_over(share, lambda k: fallen(policy, fate, back, k)) or share, "no transaction"


def fallen(policy: dict[str, Any], fate: str, back: bool, k: int) -> bool:
    """One case; False if the rollout ended before its k-th transaction."""
    made = Scene(DEFAULTS)
    try:
        rolling = served(made)
        rollout = rolling.begin(**policy)
        if back:
            rolling.until(lambda: halfway(rolling, rollout))
            assert rolling.ask(lambda: commands.revert(made.call, "web"))
        fall = Fall(made, KIND, fate, k)
        rolling.until(lambda: rolling.ended or fall(), step=0.05)
        rolling.whole("reverted" if back else "done")
    except AssertionError as error:
        raise AssertionError(f"{fate}, k={k}: {error}") from error
    finally:
        made.close()
    return fall.came


@pytest.mark.parametrize("policy", POLICIES[1:], ids=lambda policy: policy["strategy"])
def test_a_version_that_fails_goes_back_by_itself(scene: Scene, policy: dict[str, Any]) -> None:
    rolling = served(scene)
    rollout = rolling.begin(progress_deadline=12, **policy)
    while not (rolling.ended or (rolling.state and rolling.state.back)):
        for node, instance in scene.places(rollout.new):
            scene.agents[node].ail(instance, sick=True)
        scene.advance(0.25)
        scene.check()
    for agent in scene.agents.values():
        for instance in list(agent.sick):  # old pods come to the same places
            agent.ail(instance, sick=False)
    rolling.whole("reverted")


STAYING = [POLICIES[2], POLICIES[4], POLICIES[5], {"strategy": "rolling", "stages": [2, "100%"]}]


@pytest.mark.parametrize("policy", STAYING, ids=lambda policy: policy["strategy"])
def test_r14_in_a_stage_that_waits_old_pods_leave_a_lost_and_a_drained_node(
    scene: Scene, policy: dict[str, Any]
) -> None:
    rolling = served(scene)
    for agent in scene.agents.values():
        agent.delay = 90.0  # of the new pods; the old ones run
    rollout = rolling.begin(**{**policy, "progress_deadline": 600})
    whole = policy["strategy"] == "blue-green"
    counts = (6, 6) if whole else (6, 2) if policy["strategy"] == "availability" else (4, 2)
    rolling.until(lambda: tuple(len(scene.places(rc)) for rc in (rollout.old, rollout.new)) == counts)
    lost, drained = sorted(
        {node for node, _ in scene.places(rollout.old)} - {node for node, _ in scene.places(rollout.new)}
        or {node for node, _ in scene.places(rollout.old)}
    )[-2:]
    scene.run(scene.agents[lost].die(at_once=True))
    assert rolling.ask(lambda: node_commands.drain(dataclasses.replace(scene.call, force=True), drained, 5.0))
    rolling.until(lambda: not {lost, drained} & {node for _, node, _ in scene.sight.pods}, 80.0)
    assert rolling.state is not None
    assert (rolling.state.phase, rolling.state.stage, rolling.ended) == ("moving", 0, [])
    assert len(scene.places(rollout.old)) == (4 if policy["strategy"] == "availability" else counts[0])
    for agent in scene.agents.values():
        agent.delay = 0.2
    rolling.until(lambda: rolling.ended, 400.0)
    rolling.whole("done")


def test_r14_a_drained_and_a_lost_node_leave_a_rollout_of_both_versions(scene: Scene) -> None:
    """What an old pod needs is done while the controllers are lent, and what a new pod needs at once."""
    rolling = served(scene)
    rollout = rolling.begin(strategy="availability", stages=[2, {"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).reason.endswith("approve web"))
    lost = [scene.places(rollout.new)[0][0], scene.places(rolling.old)[-1][0]]
    for node in dict.fromkeys(lost):
        scene.run(scene.agents[node].die(at_once=True))
    rolling.ask(lambda: commands.approve(scene.call, "web", everything=True))
    rolling.whole("done")
    assert not set(lost) & {node for _, node, _ in scene.sight.pods}


def test_a_scale_that_leaves_fewer_stages_switches_the_service_before_old_pods_leave(scene: Scene) -> None:
    rolling = served(scene)
    for number in range(4):
        scene.add_node(f"more{number}", {"zone": "a"}, 4.0)
    rollout = rolling.begin(strategy="blue-green", stages=["30%", "60%", "100%"], keep_old=10)
    rolling.until(lambda: rolling.state and rolling.state.stage == 2, step=0.02)
    assert rolling.ask(lambda: commands.scale(scene.call, "web", 2))
    rolling.until(lambda: rolling.state and rolling.state.switched, step=0.02)
    assert [len(scene.places(rc)) for rc in (rollout.old, rollout.new)] == [2, 2]
    rolling.fields["replicas"] = 2
    rolling.whole("done")


@pytest.mark.parametrize("strategy", ["rolling", "availability", "resourceutil"])
def test_a_scale_that_leaves_fewer_stages_begins_none_that_waits_for_a_word(
    scene: Scene, strategy: str
) -> None:
    rolling = Rolling(scene)
    stages = [1, {"to": "30%", "bake": 30}, {"to": "100%", "approve": True}]
    rollout = rolling.begin(strategy=strategy, stages=stages)
    rolling.until(lambda: rolling.state and rolling.state.stage == 1, step=0.02)
    assert rolling.ask(lambda: commands.scale(scene.call, "web", 3))
    rolling.until(lambda: rolling.said(rollout.id).asks)
    scene.advance(30.0)
    assert rolling.said(rollout.id).asks == 2
    assert len(scene.places(rollout.old)) > 0
    assert rolling.ask(lambda: commands.approve(scene.call, "web"))
    rolling.fields["replicas"] = 3
    rolling.whole("done")
