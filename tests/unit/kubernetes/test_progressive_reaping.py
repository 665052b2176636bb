"""Pods that end and hold their room still, and revisions that were reverted: what a rollout keeps of them."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from farmd.kubernetes.knative import record, scaling
from farmd.kubernetes.knative.facts import Bounds, Reap, Snapshot
from farmd.kubernetes.knative.objects import REFUSED
from farmd.kubernetes.knative.settings import Settings
from store.times import rfc3339
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import reached


def ending(world: Checked, at: float) -> Snapshot:
    """A pod of the former revision ends at that second, by its time of grace."""
    found = world.snapshot()
    pods = {
        name: tuple(
            replace(pod, metadata=replace(pod.metadata, deletion_timestamp=rfc3339(at))) for pod in each
        )
        for name, each in found.pods.items()
    }
    return dataclasses.replace(found, pods=pods)


@pytest.mark.parametrize(("seconds", "reaped"), [(30.0, False), (-1.0, True)])
def test_a_pod_is_deleted_at_once_when_its_time_of_grace_is_over_and_not_before(
    seconds: float, reaped: bool
) -> None:
    world = Checked(1, Settings(ratio=50), Bounds(4, 4))
    world.settle()
    world.push(Bounds(4, 4))
    for _ in range(200):
        if world.step() and world.revisions[OLD].ending:
            break
        world.cycle()
    world.now = float(int(world.now))
    found = ending(world, world.now + seconds)
    _, _, writes = scaling.reconciled(found)
    assert any(isinstance(each, Reap) for each in writes) is reaped
    if not reaped:
        assert scaling.reaps_at(found) == world.now + seconds


def test_where_there_is_no_room_for_more_pods_that_end_go_at_once_for_the_newcomer_s_first() -> None:
    world = Checked(1, Settings(ratio=50, strategy="resourceutil"), Bounds(4, 4))
    world.settle()
    world.room = 4
    world.push(Bounds(4, 4))
    for _ in range(200):
        world.step()
        reaped = [each for each in world.cycle().writes if isinstance(each, Reap)]
        if reaped:
            break
    assert {each.pod.metadata.labels["revision"] for each in reaped} == {OLD}
    assert world.revisions[NEW].pods == 0, "it had its first pod already"


def test_of_reverted_revisions_the_last_ten_are_kept() -> None:
    world = Checked(1, Settings(ratio=20), Bounds(10, 10))
    world.settle()
    world.push(Bounds(10, 10))
    reached(world, {OLD: 60, NEW: 40})
    world.say(REFUSED, ",".join(f"web-{number:05}" for number in range(90, 100)))
    back = record.turned_back(world.snapshot(), "")
    assert back is not None
    kept = (back.annotations[REFUSED] or "").split(",")
    assert kept == [*(f"web-{number:05}" for number in range(91, 100)), NEW]
