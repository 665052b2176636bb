"""The rules for apps notice the very damage that each of them is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from farmd.housekeeping.facts import DEFAULTS
from store import codec, operations
from store.apps import KIND, App
from store.audit import Audit
from store.locks import Holder
from store.operations import Operation
from tests.app_fleet import apply, rc
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

LOCK = KEYS.lock(KIND, "shop")


class Forger:
    """An app with one object that nobody keeps, and somebody who writes in the name of its farm."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.client = scene, scene.client_of("farm/ash")
        self.key, self.other = scene.rc(name="web"), scene.rc(name="bare")
        scene.run(apply(scene.call, "shop", rc("web")))
        scene.change(KEYS.record("rcs", self.key), part_of="apps/shop")
        session = scene.run(self.client.create_session(name="ash", ttl=10.0))
        value = Holder("farm", "ash", "n").value()
        self.write(operations.check_not_exists(LOCK), operations.lock(LOCK, value, session))
        lock = scene.read(LOCK)
        assert lock is not None
        self.fence = [
            operations.check_session(LOCK, session),
            operations.check_index(LOCK, lock.modify_index),
        ]

    def write(self, *writes: Operation) -> None:
        self.scene.run(self.client.transaction(list(writes)))

    def worked(self, *writes: Operation, fenced: bool = True) -> None:
        """What a worker of the app writes."""
        record = self.scene.read(KEYS.record(KIND, "shop"))
        assert record is not None
        told = Audit(at=self.scene.clock.now(), actor="farm/ash", action="app.sweep", kind=KIND, id="shop")
        audit = operations.create(KEYS.audit("2027-01-15T07", "1"), codec.encode(told))
        fence = [*self.fence, operations.check_index(record.key, record.modify_index)] if fenced else []
        self.write(*fence, *writes, audit)

    def changed(self, item: str, **fields: Any) -> Operation:
        entry = self.scene.read(KEYS.record("rcs", item))
        assert entry is not None
        value = msgspec.json.encode(msgspec.json.decode(entry.value) | fields)
        return operations.cas(entry.key, value, entry.modify_index)


def unfenced(by: Forger) -> None:
    by.worked(by.changed(by.key, replicas_desired=0), fenced=False)


def foreign(by: Forger) -> None:
    by.scene.change(KEYS.record("rcs", by.other), part_of="apps/till")
    by.worked(by.changed(by.other, part_of="apps/shop"))


def given(by: Forger) -> None:
    by.worked(by.changed(by.key, part_of="apps/till"))


def unmarked(by: Forger) -> None:
    by.worked(by.changed(by.other, deleting=True))


def wanted(by: Forger) -> None:
    work = {"dispatch": {"seq": 1, "effective": 1}}
    by.scene.put(KEYS.work(KIND, "shop"), msgspec.json.encode(work))
    by.worked(by.changed(by.key, deleting=True))


def rewritten(by: Forger) -> None:
    found = by.scene.read(KEYS.tracker("shop", 1))
    assert found is not None
    by.worked(operations.put(found.key, found.value))


def markless(by: Forger) -> None:
    by.scene.change(KEYS.record("rcs", by.other), part_of="apps/till")


def unnamed(by: Forger) -> None:
    by.scene.change(KEYS.record("rcs", by.other), part_of="apps/shop")


def trimmed(by: Forger) -> None:
    by.scene.delete(KEYS.tracker("shop", 1))


def beyond(by: Forger) -> None:
    by.scene.put(KEYS.record(KIND, "till"), codec.encode(App(revision=1)))
    by.scene.put(KEYS.work(KIND, "till"), msgspec.json.encode({"dispatch": {"seq": 3, "reached": 3}}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (unfenced, "without a fence"),
        (foreign, "was taken from apps/till"),
        (given, "was handed to apps/till, which does not want it"),
        (unmarked, "was removed without its mark"),
        (wanted, "was removed, and revision 1 wants it"),
        (rewritten, "which only people make, once"),
        (markless, "a part of apps/till, which does not exist"),
        (unnamed, "none of its revisions [1] names it"),
        (trimmed, "needs the revisions [1], which are gone"),
        (beyond, "is beyond its wanted revision 1"),
    ],
)
def test_the_rules_for_apps_notice(damage: Callable[[Forger], None], told: str) -> None:
    scene = Scene(DEFAULTS)
    try:
        by = Forger(scene)
        scene.check(replay=False)
        damage(by)
        with pytest.raises(AssertionError) as found:
            scene.check(replay=False)
        assert told in str(found.value)
    finally:
        scene.close()
