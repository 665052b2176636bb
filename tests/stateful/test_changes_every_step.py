"""A farm that dies at any of its transactions in the middle of every longer change: the survivor finishes it.

A controller is placed, a daemon set placed, replaced in place or sent away, a node drained, a pod moved.
Every transaction counts, claims and statuses included. It never arrives, arrives unanswered, or arrives when
another farm has long taken over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest

from farmd.daemonset.commands import DAEMON_SET
from farmd.housekeeping.facts import DEFAULTS
from farmd.nodes import commands as node_commands
from tests.effort import first
from tests.stateful.fleet import KEYS
from tests.stateful.lines import LATE_SECONDS, Fault
from tests.stateful.scene import Scene

Fate = Literal["never arrives", "is never answered", "arrives after the take-over"]
FATES: dict[Fate, Fault] = {
    "never arrives": "lost",
    "is never answered": "unanswered",
    "arrives after the take-over": "late",
}


@dataclass(frozen=True)
class Case:
    """What there is before, what a person then asks for, and at least how many transactions that takes."""

    before: Callable[[Scene], None]
    change: Callable[[Scene], None]
    least: int


# -- daemon sets -------------------------------------------------------------------------------------
def daemonset(scene: Scene, **fields: object) -> None:
    pod = {"id": "mesh", "command": ["sleep", "9"], "resources": {"cpu": 1.0}}
    told = {"name": "mesh", "min_health": "50%", "min_healthy_time": 0, "node_selector": "zone=a", "pod": pod}
    spec = DAEMON_SET.file.parse(told | fields, "test")
    made = scene.ask(lambda: DAEMON_SET.create(scene.call, spec))
    assert made is not None
    scene.change(KEYS.record("daemonsets", made.change.id), **{"x-team": "a"})


def newer_manifest(scene: Scene) -> None:
    (known,) = scene.sight.daemonsets.values()
    file = DAEMON_SET.file.as_file(known, scene.sight.manifests[known.manifest])
    file["pod"] |= {"command": ["sleep", "10"], "resources": {"cpu": 2.0}}
    spec = DAEMON_SET.file.parse(file, "test")
    assert scene.ask(lambda: DAEMON_SET.update(scene.call, spec, now=True)) is not None


def relabelled(scene: Scene, node: str) -> None:
    assert scene.ask(lambda: node_commands.label(scene.call, node, {"zone": "b"})) is not None


# -- controllers -------------------------------------------------------------------------------------
def controller(scene: Scene) -> None:
    scene.rc(name="web", replicas=3, strategy="dynamic", node_selector="zone=a", pod_resources={"cpu": 1.0})


def both_kinds(scene: Scene) -> None:
    controller(scene)
    daemonset(scene)


def occupied(scene: Scene) -> str:
    """A node on which the controller has a pod."""
    return min(node for owner, node, _ in scene.sight.pods if owner in scene.sight.rcs)


def drained(scene: Scene) -> None:
    assert scene.ask(lambda: node_commands.drain(scene.call, occupied(scene), 600.0)) is not None


def nothing(scene: Scene) -> None:
    pass


CASES = {
    "scheduled": Case(nothing, controller, 2),
    "placed on every node": Case(nothing, daemonset, 2),
    "replaced in place": Case(daemonset, newer_manifest, 3),
    "off a node": Case(daemonset, lambda scene: relabelled(scene, "n3"), 1),
    "moved": Case(controller, lambda scene: relabelled(scene, occupied(scene)), 3),
    "drained": Case(both_kinds, drained, 5),
}


# -- one case ----------------------------------------------------------------------------------------
def shun(scene: Scene) -> None:
    """Close the nodes that the last transaction names: then nothing but its fence keeps it out."""
    last = scene.farms["ash"].line.last
    assert last is not None
    named = [each["KV"]["Key"] for each in json.loads(last.body) if "KV" in each]
    for node in {KEYS.intent_parts(key)[0] for key in named if key.startswith(KEYS.tree("intent"))}:
        assert scene.ask(lambda n=node: node_commands.cordon(scene.call, n)) is not None  # type: ignore[misc]


def succeeded(scene: Scene) -> None:
    """The farm is dead, its session ends at once, and the survivor has all its items."""
    ash = scene.farms["ash"]
    (session,) = [each.id for each in scene.server.state.sessions.all() if each.name.endswith("ash")]
    scene.run(ash.kill())
    scene.run(scene.farms["birch"].start())
    scene.run(scene.hand.destroy_session(session))
    for _ in range(40):
        scene.advance(0.2)
        scene.check()
        if not scene.unowned():
            return
    raise AssertionError(f"not taken over: {scene.unowned()}")


def fallen(name: str, fate: Fate, k: int) -> bool:
    """One case; False if the change took no ``k`` transactions."""
    case, scene = CASES[name], Scene(DEFAULTS)
    try:
        scene.nodes(8, cpu=10.0)
        scene.farm("ash")
        case.before(scene)
        scene.advance(20.0)
        line = scene.farms["ash"].line
        line.end_at(k, FATES[fate])
        case.change(scene)
        while not line.dead and scene.undone():
            scene.advance(0.05)
        if not line.dead:
            return False
        if fate == "arrives after the take-over":
            shun(scene)
        succeeded(scene)
        scene.advance(LATE_SECONDS)
        scene.converge()
    except AssertionError as error:
        raise AssertionError(f"{name}, k={k}, the transaction {fate}: {error}") from error
    finally:
        scene.close()
    return True


@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("name", CASES)
def test_r12_what_was_under_way_is_finished_once(name: str, fate: Fate) -> None:
    k = 0
    while fallen(name, fate, k):
        k += 1
    assert k >= CASES[name].least
