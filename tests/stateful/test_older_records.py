"""A fleet goes on with what versions wrote that made room for pods of higher priority by others' moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farmd.doctor.examine import examine
from store import manifests
from store.nodes import Reserved
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

WAITING = {"urgent": {"owner": "dead0000dead0000", "priority": 80, "amounts": {"cpu": 1.0}, "since": 1.0}}
RANKS = {"hello": 20, "gone": 20}


def book(scene: Scene, node: str) -> dict[str, Any]:
    entry = scene.read(KEYS.reserved(node))
    assert entry is not None
    found: dict[str, Any] = json.loads(entry.value)
    return found


def of_low_priority(scene: Scene) -> str:
    """A controller whose stored manifest names a priority."""
    rc = scene.rc(replicas=1, pod_resources={"cpu": 1.0})
    made = scene.sight.rcs[rc].manifest
    body = scene.read(KEYS.manifest(made))
    assert body is not None
    ranked = json.dumps(json.loads(body.value) | {"priority": 20}, separators=(",", ":")).encode()
    scene.put(KEYS.manifest(manifests.digest(ranked)), ranked)
    scene.change(KEYS.record("rcs", rc), manifest=manifests.digest(ranked))
    return rc


@pytest.mark.parametrize("phase", ["reserved", "placed"])
def test_w16_a_move_that_made_room_for_others_is_called_off_and_leaves_no_room_behind(
    scene: Scene, phase: str
) -> None:
    scene.nodes(2, cpu=1.0)
    for node in ("n0", "n1"):
        scene.put(KEYS.reserved(node), json.dumps({"nominations": WAITING, "priorities": RANKS}).encode())
    rc = of_low_priority(scene)
    manifest = scene.sight.rcs[rc].manifest
    farm = scene.farm()
    ((old, instance),) = scene.places(rc)
    assert scene.status(rc).state == "converged"
    scene.run(farm.stop())
    new = "n1" if old == "n0" else "n0"
    transfer = {
        "id": "t",
        "old_node": old,
        "old_instance": instance,
        "new_node": new,
        "new_instance": instance,
    }
    transfer |= {"cause": "preempted", "phase": phase}
    when = {"since": scene.clock.now(), "deadline": scene.clock.now() + 300.0}
    scene.put(KEYS.work("rcs", rc), json.dumps({"transfer": transfer | when}).encode())
    scene.change(KEYS.reserved(new), instances={instance: {"cpu": 1.0}})
    if phase == "placed":
        scene.agents[new].ail(instance, sick=True)
        scene.put(KEYS.pod(rc, new, instance), json.dumps({"manifest": manifest}).encode())
        scene.put(KEYS.intent(new, instance), json.dumps({"manifest": manifest, "owner": rc}).encode())
    scene.farm()
    scene.converge(within=60.0)
    assert scene.audits("transfer.cancel") == 1
    assert scene.places(rc) == [(old, instance)]
    assert {node: record.instances for node, record in scene.sight.reserved.items()} == {
        old: {instance: {"cpu": 1.0}},
        new: Reserved().instances,
    }
    for node in (old, new):
        assert (book(scene, node)["nominations"], book(scene, node)["priorities"]) == (WAITING, RANKS)
    report = scene.run(examine(scene.client, KEYS, scene.clock))
    assert [finding.code for finding in report.findings if finding.fixable] == []
