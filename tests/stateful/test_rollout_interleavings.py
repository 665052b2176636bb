"""A rollout among others who act at the worst moment, on virtual time: each test is one such interleaving."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.nodes import commands as node_commands
from farmd.replication.commands import RC
from farmd.rollout import commands
from store.locks import Holder
from store.rollouts import KIND
from tests.people import hello
from tests.stateful.fleet import KEYS
from tests.stateful.rolling import Rolling
from tests.stateful.scene import Scene

SLOW = 6.0
PAUSE = 10.0


def holder(scene: Scene, item: str, kind: str = KIND) -> str:
    """The farm that owns an item."""
    entry = scene.read(KEYS.lock(kind, item))
    return "" if entry is None else Holder.parse(entry.value).id


def slow(scene: Scene) -> None:
    """Pods take their time to start."""
    for agent in scene.agents.values():
        agent.delay = SLOW


def by_controllers(scene: Scene) -> list[str]:
    """What the workers of controllers did to pods."""
    audits = [audit for _, audit in scene.sight.dump.audits]
    return [audit.action for audit in audits if audit.kind == "rcs" and audit.placed + audit.removed]


def test_r9_r13_a_hand_over_in_mid_stage_takes_the_mutation_locks_of_a_giver_who_lives(scene: Scene) -> None:
    rolling = Rolling(scene, farms=("ash",))
    api: dict[str, Any] = {"name": "api", "replicas": 4, "pod_id": "api"}
    scene.rc(**api)
    scene.advance(15.0)
    slow(scene)
    first = rolling.begin(stages=["100%"])
    wanted = RC.file.parse(hello(**api, rollout={"stages": ["100%"]}, pod_command=["sleep", "10"]), "test")
    made = rolling.ask(lambda: RC.update(scene.call, wanted, now=False))
    assert made is not None
    items = first.id, made.change.id
    rolling.until(lambda: len(rolling.scene.sight.work) >= 2)
    scene.farm("birch")
    rolling.until(lambda: {holder(scene, item) for item in items} == {"ash", "birch"})
    assert rolling.ended == []
    rolling.until(lambda: not rolling.rollout)
    scene.converge()
    assert scene.audits("rollout.lock") >= 1
    assert scene.audits("rollout.done") == 2


def test_r14_r15_whoever_missed_a_take_and_a_lend_reads_the_pods_before_it_plans(scene: Scene) -> None:
    """Farms read the tree of pods every 10 s; the controllers are lent for a moment at each stage."""
    rolling = Rolling(scene, pods_pause=PAUSE)
    for version in (10, 11, 12, 13):
        rollout = rolling.begin(version=version, stages=[{"to": 1, "bake": 2}, {"to": 3, "bake": 2}, "100%"])
        rolling.until(lambda: rolling.rollout is None)
        scene.advance(25.0)
        scene.check()
        assert len(scene.places(rollout.new)) == rolling.fields["replicas"]
    assert rolling.ended == ["done"] * 4
    assert by_controllers(scene) == ["pods.place"]  # the first placement, and nothing after it


def test_r14_a_move_that_was_under_way_is_ended_before_the_first_pod_goes(scene: Scene) -> None:
    """The farm that moves a pod is stopped for a moment, so that another one takes the controllers."""
    rolling = Rolling(scene, strategy="dynamic", node_selector="zone=a", pods_pause=PAUSE)
    slow(scene)
    node = scene.places(rolling.old)[0][0]
    scene.change(KEYS.node(node), labels={"zone": "b"})

    def transfer() -> Any:
        work = scene.sight.work.get(f"rcs/{rolling.old}")
        return work.transfer if work is not None else None

    rolling.until(transfer)
    mover = scene.farms[holder(scene, rolling.old, "rcs")]
    mover.freeze()
    rollout = rolling.begin(stages=["100%"])
    scene.advance(6.0)
    assert rolling.state is not None
    assert transfer()
    assert scene.audits("rollout.move") == 0
    assert rolling.said(rollout.id).reason.startswith("waiting until a move")
    mover.thaw()
    rolling.whole("done")
    assert node not in {node for _, node, _ in scene.sight.pods}


@pytest.mark.parametrize("deadline", [20, 60])
def test_r19_a_version_that_fails_on_most_nodes_is_reverted_although_that_freezes_all_else(
    scene: Scene, deadline: int
) -> None:
    """Also after the freeze has halted it."""
    rolling = Rolling(scene, 24)
    rollout = rolling.begin(stages=["100%"], minimum=0, min_healthy_time=5, progress_deadline=deadline)
    for agent in scene.agents.values():
        agent.lives[rollout.to_manifest] = 0.0
    rolling.until(lambda: len(scene.places(rollout.new)) > 12)
    rolling.until(lambda: scene.read(KEYS.failsafe("rcs")))
    rolling.whole("reverted")


def test_r22_an_agent_that_saw_neither_the_new_version_nor_the_way_back_acknowledges_what_runs(
    scene: Scene,
) -> None:
    rolling = Rolling(scene)
    node, instance = scene.places(rolling.old)[0]
    agent = scene.agents[node]
    started = agent.started(instance)
    scene.run(agent.die(at_once=False))
    rollout = rolling.begin(stages=["100%"])
    rolling.until(lambda: (node, instance) in scene.places(rollout.new), 10.0)
    assert rolling.ask(lambda: commands.revert(scene.call, "web"))
    rolling.until(lambda: (node, instance) in scene.places(rollout.old), 10.0)
    scene.run(agent.start())
    rolling.whole("reverted")
    assert agent.started(instance) == started


def test_r21_an_agent_that_comes_back_while_its_pod_is_taken_elsewhere_ends_it(scene: Scene) -> None:
    rolling = Rolling(scene)
    slow(scene)
    rollout = rolling.begin(stages=["100%"])
    rolling.until(lambda: scene.places(rollout.new))
    node, _ = scene.places(rollout.new)[0]
    agent = scene.agents[node]
    scene.run(agent.die(at_once=True))
    rolling.until(lambda: scene.sight.work.get(f"nodes/{node}"), 60.0)
    scene.run(agent.start())
    rolling.whole("done")


def test_r14_a_drain_in_a_rest_is_the_controllers_own_work(scene: Scene) -> None:
    """Lent, a controller moves its pods off a drained node, and the rollout goes on from what it finds."""
    rolling = Rolling(scene, pods_pause=PAUSE)
    rollout = rolling.begin(stages=["50%", {"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).reason.endswith("approve web"))
    node = scene.places(rollout.new)[0][0]
    assert rolling.ask(lambda: node_commands.drain(scene.call, node, 300.0))
    rolling.until(lambda: not {at for _, at, _ in scene.sight.pods} & {node})
    assert rolling.ask(lambda: commands.approve(scene.call, "web", everything=True))
    rolling.whole("done")
