"""R19: how many pods the farms replace by themselves in a minute, all of them together (W17)."""

from __future__ import annotations

import dataclasses

import pytest

from farmd.daemonset.commands import DAEMON_SET
from farmd.nodes import commands as node_commands
from store import codec
from store.failsafe import Failsafe
from tests.stateful.fleet import FARMS, KEYS
from tests.stateful.scene import Scene


def replaced(scene: Scene) -> int:
    return sum(len(audit.removed) for _, audit in scene.sight.dump.audits)


def freeze(scene: Scene) -> str:
    """The evidence that freezes removals of RCs; empty while there is none."""
    entry = scene.read(KEYS.failsafe("rcs"))
    return "" if entry is None else codec.decode(Failsafe, entry.value, entry.key).evidence


def test_w17_the_farms_together_keep_the_budget_of_a_minute(scene: Scene) -> None:
    """Each replaces a share of its own pods: shares of all pods would add up to more than all."""
    scene.nodes(7)  # three of five would be a mass loss
    for name in FARMS:
        scene.run(scene.farms[name].start())
    for number in range(60):
        scene.rc(name=f"rc-{number}", replicas=5, pod_id=f"p{number}", replicas_per_node=5, max_unavailable=5)
    scene.advance(40.0)
    assert len(scene.sight.pods) == 300
    # A farm that is about to hand items over has the budget of more pods.
    loops = [loop for farm in scene.farms.values() if farm.farm is not None for loop in farm.farm.loops]
    assert [len(loop.supervisor.owned) for loop in loops if loop.kind.name == "rcs"] == [20, 20, 20]
    for node in ("n0", "n1", "n2"):
        scene.run(scene.agents[node].die(at_once=True))
    scene.advance(40.0)
    told = [alert for farm in scene.farms.values() for alert in farm.inbox.fired]
    assert [alert for alert in told if alert.urgency == "high" and "budget" in alert.summary], told
    assert 0 < replaced(scene) <= 90, "30 % of 300 in a minute"


@pytest.mark.whole
def test_w17_a_forced_drain_is_a_persons_word_and_spends_no_budget(scene: Scene) -> None:
    """Fifty pods are on the move when its time is over; the hundred others leave at once."""
    scene.nodes(3)
    scene.farm()
    for number in range(240):
        scene.rc(name=f"rc-{number}", replicas=1, pod_id=f"p{number}")
        scene.advance(0.1)
    scene.advance(1.0)
    assert len(scene.sight.pods) == 240
    leaving = sum(node != "n2" for _, node, _ in scene.sight.pods)
    assert leaving > 150
    scene.agents["n2"].delay = 2.0
    forced = dataclasses.replace(scene.call, force=True)
    for node in ("n0", "n1"):
        assert scene.ask(lambda n=node: node_commands.drain(forced, n, 0.5))  # type: ignore[misc]
    scene.advance(10.0)
    assert freeze(scene) == ""
    assert {node for _, node, _ in scene.sight.pods} == {"n2"}
    assert scene.audits("pods.retarget") + scene.audits("transfer.finish") == leaving


@pytest.mark.whole
def test_w17_what_was_refused_spends_no_budget(scene: Scene) -> None:
    """Three farms heal at once and meet over the same nodes' reservations: that is no mass removal."""
    scene.nodes(4, cpu=100.0)
    for name in FARMS:
        scene.run(scene.farms[name].start())
    for number in range(160):
        scene.rc(name=f"rc-{number}", replicas=1, pod_id=f"p{number}", pod_resources={"cpu": 1.0})
        scene.advance(0.1)
    scene.advance(20.0)
    lost = sum(node == "n0" for _, node, _ in scene.sight.pods)
    assert 30 <= lost <= 50
    scene.run(scene.agents["n0"].die(at_once=True))
    scene.advance(40.0)
    told = [alert.summary for farm in scene.farms.values() for alert in farm.inbox.fired]
    assert not [text for text in told if "budget" in text]
    assert replaced(scene) == lost


def test_w17_one_lost_node_of_three_heals_without_a_freeze(scene: Scene) -> None:
    """A third of all pods is more than the budget's share, and still what healing is there for."""
    scene.nodes(3)
    scene.farm()
    for number in range(90):
        scene.rc(name=f"rc-{number}", replicas=1, pod_id=f"p{number}")
        scene.advance(0.1)
    lost = sum(node == "n0" for _, node, _ in scene.sight.pods)
    assert lost > 27
    scene.run(scene.agents["n0"].die(at_once=True))
    scene.advance(40.0)
    assert [alert.summary for alert in scene.farms["ash"].inbox.fired if "budget" in alert.summary] == []
    assert {node for _, node, _ in scene.sight.pods} == {"n1", "n2"}
    assert replaced(scene) == lost


def test_r19_a_daemon_sets_rejected_removals_spend_no_budget(scene: Scene) -> None:
    """Nine pods must leave and are refused six times: that is no reason to keep them for ever."""
    scene.nodes(10)
    farm = scene.farm()
    pod = {"id": "mesh", "command": ["sleep", "9"]}
    spec = DAEMON_SET.file.parse({"name": "mesh", "node_selector": "zone=a", "pod": pod}, "test")
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, spec))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})
    scene.advance(20.0)
    assert len(scene.sight.pods) == 10
    for _ in range(6):
        farm.line.spoil(0, "rejected")
    for number in range(9):
        scene.change(KEYS.node(f"n{number}"), labels={"zone": "b"})
    scene.advance(45.0)
    assert [alert.summary for alert in farm.inbox.fired if "budget" in alert.summary] == []
    assert {node for _, node, _ in scene.sight.pods} == {"n9"}
