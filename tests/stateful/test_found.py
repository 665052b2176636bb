"""What the random walk over whole fleets once found, each as the shortest way to it."""

from __future__ import annotations

import pytest

from farmd.nodes import commands as node_commands
from farmd.replication import commands
from farmd.replication.commands import RC
from store import codec
from store.pods import Pod
from store.reality import Intent
from tests.people import hello
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


def test_r6_locks_do_not_come_and_go_while_a_tree_cannot_be_read(scene: Scene) -> None:
    scene.nodes(2)
    scene.farm()
    sentinel = KEYS.sentinel(KEYS.tree("nodes"))
    value = scene.read(sentinel)
    assert value is not None
    scene.delete(sentinel)
    rc = scene.rc(name="web", replicas=2)
    scene.advance(10.0)
    before = scene.witness.commits
    scene.advance(60.0)
    assert scene.witness.commits - before < 60
    scene.put(sentinel, value.value)
    scene.advance(30.0)
    assert len(scene.places(rc)) == 2


def test_r21_a_node_that_came_back_keeps_the_pods_that_were_judged_while_it_was_lost(scene: Scene) -> None:
    scene.nodes(3)
    rc = scene.rc(name="web", replicas=3, strategy="dynamic")
    scene.farm()
    scene.run(scene.agents["n0"].die(at_once=True))
    scene.advance(20.0)
    scene.change(KEYS.record("rcs", rc), labels={"any": "change"})
    scene.advance(2.0)
    assert scene.status(rc).state == "blocked"
    scene.run(scene.agents["n0"].start())
    scene.advance(20.0)
    assert scene.status(rc).state == "converged"


def test_r17_a_new_manifest_is_not_put_where_it_does_not_fit(scene: Scene) -> None:
    scene.nodes(1, cpu=2.0)
    rc = scene.rc(name="web", replicas=1, pod_id="web", pod_resources={"cpu": 1.0})
    scene.rc(name="db", replicas=1, pod_id="db", pod_resources={"cpu": 1.0})
    scene.farm()
    spec = RC.file.parse(hello(name="web", replicas=1, pod_id="web", pod_resources={"cpu": 1.5}), "test")
    assert scene.ask(lambda: RC.update(scene.call, spec, now=True)) is not None
    scene.advance(5.0)
    assert scene.status(rc).state == "blocked"
    assert "no room" in scene.status(rc).reason
    scene.check()
    assert scene.ask(lambda: commands.set_replicas(scene.call, "db", 0)) is not None
    scene.advance(5.0)
    assert scene.status(rc).state == "converged"


@pytest.mark.parametrize("restarted", [False, True])
def test_r10_what_nobody_can_read_of_a_node_moves_nothing(scene: Scene, restarted: bool) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, strategy="dynamic", node_selector="zone=a")
    farm = scene.farm()
    stood = scene.places(rc)
    scene.corrupt(KEYS.node(stood[0][0]), b"{")
    if restarted:
        scene.run(farm.stop())
        scene.farm()
    scene.advance(60.0)
    assert scene.places(rc) == stood
    assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 2)) is not None
    scene.advance(5.0)
    assert len(scene.places(rc)) == 2
    scene.mend(KEYS.node(stood[0][0]))
    scene.converge()


def test_r12_a_status_that_arrives_late_replaces_no_later_one(scene: Scene) -> None:
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1)
    farm = scene.farm()
    farm.line.spoil(0, "late")
    scene.agents["n0"].ail("hello", sick=True)
    scene.advance(2.5)
    assert scene.status(rc).healthy == 0
    scene.agents["n0"].ail("hello", sick=False)
    scene.advance(2.5)
    assert scene.status(rc).state == "converged"
    scene.advance(20.0)
    assert scene.status(rc).state == "converged"


def test_r12_a_removal_that_arrives_twice_is_told_once(scene: Scene) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=2)
    farm = scene.farm()
    farm.line.spoil(0, "late")
    assert scene.ask(lambda: commands.set_replicas(scene.call, "web", 0)) is not None
    scene.advance(40.0)
    assert scene.places(rc) == []
    assert scene.audits("pods.remove") == 1


def test_r17_room_of_a_move_whose_place_somebody_took_is_given_back(scene: Scene) -> None:
    scene.nodes(2)
    rc = scene.rc(name="web", replicas=1, pod_resources={"cpu": 1.0}, replicas_per_node=2, strategy="dynamic")
    farm = scene.farm()
    other = scene.rc(name="other", replicas=1, pod_id="other", disabled=True)
    (place,) = scene.places(rc)
    farm.line.delay = 0.5
    assert scene.ask(lambda: node_commands.drain(scene.call, place[0], 600.0)) is not None
    while (work := scene.sight.work.get(f"rcs/{rc}")) is None:
        scene.advance(0.1)
    assert work.transfer is not None
    new, manifest = work.transfer.new, scene.sight.rcs[other].manifest
    assert new[1] in scene.sight.reserved[new[0]].instances
    scene.put(KEYS.pod(other, *new), codec.encode(Pod(manifest)))
    scene.put(KEYS.intent(*new), codec.encode(Intent(manifest, other)))
    scene.advance(20.0)
    assert scene.sight.work[f"rcs/{rc}"].transfer is None
    assert new[1] not in scene.sight.reserved[new[0]].instances


def test_a_pod_that_does_not_decode_keeps_its_place(scene: Scene) -> None:
    scene.nodes(1)
    first = scene.rc(name="web", replicas=1, pod_resources={"cpu": 1.0})
    scene.farm()
    (place,) = scene.places(first)
    scene.corrupt(KEYS.pod(first, *place), b"{")
    scene.witness.tampered.add(place)
    scene.delete(KEYS.intent(*place))
    second = scene.rc(name="rival", replicas=1)
    scene.advance(20.0)
    assert scene.places(second) == []
    scene.mend(KEYS.pod(first, *place))
    scene.converge()


def test_an_intent_that_is_left_alone_is_told(scene: Scene) -> None:
    scene.nodes(1)
    rc = scene.rc(name="web", replicas=1, node_selector="zone=a")
    scene.farm()
    (place,) = scene.places(rc)
    assert scene.ask(lambda: node_commands.label(scene.call, "n0", {"zone": "b"})) is not None
    scene.witness.tampered.add(place)
    scene.delete(KEYS.intent(*place))
    scene.advance(20.0)
    assert scene.status(rc).state == "blocked"
    assert "intent" in scene.status(rc).reason
