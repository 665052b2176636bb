"""The witness of whole fleets notices the very damage that each of its rules is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farmd.housekeeping.facts import DEFAULTS
from store import codec, operations
from store.audit import Audit
from store.daemonsets import DaemonSet
from store.locks import Holder
from store.nodes import Node
from store.operations import Operation
from store.pods import Pod
from store.reality import Intent
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

SET = DaemonSet(id="0f", name="logs", manifest="a" * 64, pod_id="log", rate=1)
LOCK = KEYS.lock("daemonsets", SET.id)


class Forger:
    """Writes in the name of a farm that holds the daemon set's lock."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.client = scene.client_of("farm/ash")
        self.session = scene.run(self.client.create_session(name="ash", ttl=10.0))
        value = Holder("farm", "ash", "n").value()
        self.write(operations.check_not_exists(LOCK), operations.lock(LOCK, value, self.session))

    def write(self, *writes: Operation) -> None:
        self.scene.run(self.client.transaction(list(writes)))

    def fence(self) -> list[Operation]:
        entry, record = self.scene.read(LOCK), self.scene.read(KEYS.record("daemonsets", SET.id))
        assert entry is not None
        assert record is not None
        return [
            operations.check_session(LOCK, self.session),
            operations.check_index(LOCK, entry.modify_index),
            operations.check_index(record.key, record.modify_index),
        ]

    def audit(self, **fields: object) -> Operation:
        at = self.scene.clock.now()
        said = {"action": "pods.place", "kind": "daemonsets", "id": SET.id, "name": SET.name, **fields}
        record = Audit(at=at, actor="farm/ash", **said)  # type: ignore[arg-type]
        return operations.create(KEYS.audit("2027-01-15T07", "1"), codec.encode(record))

    def placed(self, *nodes: str, told: int | None = None) -> None:
        pod, intent = Pod(SET.manifest, at=self.scene.clock.now()), Intent(SET.manifest, SET.id)
        writes = []
        for node in nodes:
            writes.append(operations.create(KEYS.pod(SET.id, node, "log"), codec.encode(pod)))
            writes.append(operations.create(KEYS.intent(node, "log"), codec.encode(intent)))
        listed = [f"{node}/log" for node in nodes][:told]
        counts = {"before": {"pods": 0}, "after": {"pods": len(nodes)}}
        self.write(*self.fence(), *writes, self.audit(placed=listed, **counts))


def unfenced(forger: Forger) -> None:
    forger.write(operations.create(KEYS.status("rcs", "1"), b"{}"))


def stolen_lock(forger: Forger) -> None:
    forger.write(operations.lock(LOCK, Holder("farm", "ash", "m").value(), forger.session))


def untold(forger: Forger) -> None:
    forger.placed("n0", told=0)


def too_fast(forger: Forger) -> None:
    forger.placed("n0", "n1")


def onto_a_closed_node(forger: Forger) -> None:
    forger.scene.put(KEYS.node("n0"), codec.encode(Node(cordoned=True)))
    forger.scene.advance(5.0)
    forger.placed("n0")


def given_up_too_soon(forger: Forger) -> None:
    forger.write(*forger.fence(), forger.audit(action="node.lost", kind="nodes", id="n0"))


def collected_in_use(forger: Forger) -> None:
    forger.write(*forger.fence(), operations.delete(KEYS.manifest(SET.manifest)))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (unfenced, "without a fence"),
        (stolen_lock, "over what may be there"),
        (untold, "the audit says []"),
        (too_fast, "allowed are 1"),
        (onto_a_closed_node, "takes nothing"),
        (given_up_too_soon, "whose agent is there"),
        (collected_in_use, "to which"),
    ],
)
def test_damage_is_noticed(damage: Callable[[Forger], None], line: str) -> None:
    scene = Scene(DEFAULTS)
    try:
        scene.nodes(2)
        scene.run(scene.farm().stop())  # it was there, and its line is good
        scene.put(KEYS.manifest(SET.manifest), b"{}")
        scene.put(KEYS.record("daemonsets", SET.id), codec.encode(SET))
        scene.advance(5.0)
        forger = Forger(scene)
        assert scene.witness.violations == []
        damage(forger)
        assert any(line in said for said in scene.witness.violations), scene.witness.violations
    finally:
        scene.close()
