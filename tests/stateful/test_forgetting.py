"""A lost node whose pods nobody moves by themselves: a drain takes them off, then it can be forgotten."""

from __future__ import annotations

import dataclasses

from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from farmd.nodes.forgetting import forget
from store import codec
from store.nodes import Node
from tests.stateful.fleet import FARMS, KEYS
from tests.stateful.scene import Scene


def stage(scene: Scene, node: str) -> str:
    entry = scene.read(KEYS.node(node))
    assert entry is not None
    drain = codec.decode(Node, entry.value, entry.key).drain
    return drain.stage if drain is not None else ""


def test_r21_a_lost_node_is_drained_of_what_waits_for_it_and_forgotten_for_good(scene: Scene) -> None:
    scene.nodes(3)
    scene.farm(FARMS[0])
    scene.farm(FARMS[1])
    rc = scene.rc(replicas=2, on_lost="wait")
    everywhere = {"name": "logs", "pod": {"id": "logs", "command": ["sleep", "9"]}}
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, DAEMON_SET.file.parse(everywhere, "test")))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})
    scene.advance(20.0)
    logs, node = made.change.id, scene.places(rc)[0][0]
    assert len(scene.places(logs)) == 3
    scene.run(scene.agents[node].die(at_once=True))
    scene.advance(60.0)
    assert node in {place[0] for place in scene.places(rc)}, "it waits"
    assert node in {place[0] for place in scene.places(logs)}
    assert scene.ask(lambda: forget(scene.call, node)) is None, "pods are there"
    assert scene.ask(lambda: node_commands.drain(scene.call, node, 600.0))
    scene.advance(30.0)
    assert node not in {place[0] for place in scene.places(logs)}
    assert node in {place[0] for place in scene.places(rc)}, "it still waits"
    forced = dataclasses.replace(scene.call, force=True, reason="scrapped")
    assert scene.ask(lambda: node_commands.drain(forced, node, 1.0))
    scene.advance(60.0)
    assert stage(scene, node) == "done"
    assert scene.ask(lambda: forget(scene.call, node))
    scene.advance(60.0)
    assert scene.read(KEYS.node(node)) is None
    assert node not in {place[0] for owner in (rc, logs) for place in scene.places(owner)}
    assert len(scene.places(rc)) == 2
    assert len(scene.places(logs)) == 2
    told = [farm.inbox.firing for farm in scene.farms.values()]
    assert not [key for firing in told for key in firing if node in key]
    scene.run(scene.agents[node].register())
    scene.run(scene.agents[node].start())
    scene.advance(20.0)
    scene.change(KEYS.node(node), **{"x-rack": node})  # written down again by a farm
    assert node in {place[0] for place in scene.places(logs)}, "it is a new node"
