"""Owners of pods that something manages: left alone while taken, read anew once they are lent (R14).

The manager here is a pair of bare hands, which write what a deployment would.
"""

from __future__ import annotations

from typing import Any

import pytest

from farmd.commands.noun import Noun
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from store import codec
from store.pods import Place, Pod
from store.reality import Intent
from tests.people import hello
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

PODS_PAUSE = 10.0
NODES = 3

FILES: dict[str, dict[str, Any]] = {
    "rcs": hello(name="web", node_selector="zone=b", replicas=NODES),
    "daemonsets": {
        "name": "web",
        "node_selector": "zone=b",
        "pod": {"id": "hello", "command": ["sleep", "9"]},
        "min_healthy_time": 0,
    },
}
NOUNS: dict[str, Noun[Any, Any]] = {"rcs": RC, "daemonsets": DAEMON_SET}
KINDS = pytest.mark.parametrize("kind", FILES)


class Managed:
    """An owner of that kind under a manager, which has taken it before its first pod was placed."""

    def __init__(self, scene: Scene, kind: str) -> None:
        self.scene = scene
        scene.farms["ash"].own_trees_pause = PODS_PAUSE
        scene.nodes(NODES)
        scene.farm("ash")
        noun = NOUNS[kind]
        made = scene.ask(lambda: noun.create(scene.call, noun.file.parse(FILES[kind], "test")))
        assert made is not None
        self.id, self.key = made.change.id, KEYS.record(kind, made.change.id)
        self.manifest = made.change.manifest
        managed = {"managed_by": "deployments/1", "taken": True, "hands": 1, "numbered": True, "x-team": "a"}
        scene.change(self.key, **managed, node_selector="zone=a")
        scene.advance(15.0)

    def place(self, node: str, instance: str = "hello~1") -> None:
        intent = codec.encode(Intent(self.manifest, self.id))
        self.scene.put(KEYS.intent(node, instance), intent)
        self.scene.put(KEYS.pod(self.id, node, instance), codec.encode(Pod(self.manifest, {}, 1.0)))

    def release(self) -> None:
        self.scene.change(self.key, managed_by="", taken=False, hands=2)

    @property
    def places(self) -> list[Place]:
        return self.scene.places(self.id)


@KINDS
def test_r14_while_taken_its_worker_neither_adds_nor_removes_nor_repairs(scene: Scene, kind: str) -> None:
    managed = Managed(scene, kind)
    assert managed.places == []
    managed.place("n0")
    scene.advance(15.0)
    scene.delete(KEYS.intent("n0", "hello~1"))
    scene.change(KEYS.node("n0"), labels={"zone": "b"}, drain={"since": 1.0})
    scene.advance(60.0)
    assert managed.places == [("n0", "hello~1")]
    assert not scene.read(KEYS.intent("n0", "hello~1"))
    assert scene.status(managed.id, kind).placed == 1
    managed.place("n0")


@KINDS
def test_r14_after_it_is_lent_its_worker_heals_it_beside_numbered_pods(scene: Scene, kind: str) -> None:
    managed = Managed(scene, kind)
    managed.place("n0")
    managed.release()
    scene.advance(30.0)
    assert managed.places == [("n0", "hello~1"), ("n1", "hello~0"), ("n2", "hello~0")]
    assert scene.status(managed.id, kind).state == "converged"


@KINDS
def test_r14_r15_its_worker_reads_the_pods_that_its_manager_placed_before_it_plans(
    scene: Scene, kind: str
) -> None:
    """The farm hears of the release at once, and of the pods up to 10 s later."""
    managed = Managed(scene, kind)
    for number in range(NODES):
        managed.place(f"n{number}")
    scene.advance(2.0)
    managed.release()
    scene.advance(30.0)
    assert managed.places == [(f"n{number}", "hello~1") for number in range(NODES)]
    assert scene.audits("pods.place") == 0


@KINDS
def test_r15_a_farm_that_claims_it_reads_the_intents_of_its_pods_before_it_plans(
    scene: Scene, kind: str
) -> None:
    """The farm hears of a new claim at once, and of the intents that the manager took over much later."""
    managed, birch = Managed(scene, kind), scene.farms["birch"]
    for number in range(NODES):
        scene.put(KEYS.intent(f"n{number}", "hello~1"), codec.encode(Intent(managed.manifest, "former")))
    birch.own_trees_pause = 3600.0
    scene.farm("birch")
    for number in range(NODES):
        managed.place(f"n{number}")
    scene.run(scene.farms["ash"].stop())
    managed.release()
    scene.advance(30.0)
    assert scene.status(managed.id, kind).farm == "birch"
    assert (scene.status(managed.id, kind).state, scene.status(managed.id, kind).reason) == ("converged", "")


def test_r14_of_two_pods_on_a_node_a_daemon_set_keeps_the_one_that_serves(scene: Scene) -> None:
    managed = Managed(scene, "daemonsets")
    managed.place("n0", "hello~0")
    managed.place("n0", "hello~1")
    scene.advance(5.0)
    scene.agents["n0"].ail("hello~0", True)
    managed.release()
    scene.advance(60.0)
    assert ("n0", "hello~1") in managed.places
    assert ("n0", "hello~0") not in managed.places
    assert scene.status(managed.id, "daemonsets").state == "converged"
