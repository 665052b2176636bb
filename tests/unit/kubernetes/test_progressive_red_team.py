"""What went wrong in thought, row by row of the design's red team.

- Another push while a newcomer never gets ready: ``test_rollout_history`` (passed over with one pod at most).
- A farm is stopped before it writes traffic: ``test_rollouts`` (a former owner), ``test_progressive_falls``.
- Traffic is pinned between a farm's reading and its write; a service is made anew: ``test_rollouts``.
- A pin to a revision without pods; a record that is deleted: ``test_rollouts``, ``test_progressive_words``.
- A tool heals its traffic; somebody edits bounds in mid-stage: ``test_progressive_words``.
- A farm dies on the way back, or while it releases: ``test_progressive_falls``, ``test_rollouts``.
- Knative is upgraded or downgraded in mid-stage: ``test_rollout_history``.
- The rest stands here.
"""

from __future__ import annotations

import dataclasses

from farmd.kubernetes.knative.facts import Bounds, Snapshot, Traffic
from farmd.kubernetes.knative.objects import Meta, RevisionPod
from farmd.kubernetes.knative.settings import Settings
from farmd.kubernetes.objects import PodCondition, PodStatus
from tests.unit.kubernetes.test_progressive_properties import NEW, OLD, Checked
from tests.unit.kubernetes.test_progressive_words import reached


def test_a_newcomer_that_broke_while_no_farm_was_alive_loses_its_traffic_at_once() -> None:
    world = Checked(1, Settings(ratio=20), Bounds(10, 10))
    world.settle()
    world.push(Bounds(10, 10))
    reached(world, {OLD: 60, NEW: 40})
    scale = world.revisions[NEW]
    scale.broken, scale.ready, scale.pods = True, False, 0
    world.now += 3600.0
    while world.shares != {OLD: 100}:
        before = len(world.written)
        plan = world.cycle()
        moved = [each for each in world.written[before:] if isinstance(each, Traffic)]
        assert all({each.revision_name for each in write.entries} == {OLD} for write in moved)
        if plan.empty:
            world.step()
        elif moved:
            world.shares = {OLD: 100}
    world.now += 700.0
    world.settle()
    assert world.record is not None
    assert world.record.metadata.annotations["farmd.io/refused"] == NEW
    assert world.revisions[OLD].pods == 10


class Full(Checked):
    """A world that shows a pod of the newcomer for which there is no room."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        if NEW not in self.revisions or self.revisions[NEW].pods or self.room > 10:
            return found
        waits = PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="no cpu")
        pod = RevisionPod(
            metadata=Meta(name=f"{NEW}-x"), status=PodStatus(phase="Pending", conditions=(waits,))
        )
        return dataclasses.replace(found, pods={**found.pods, NEW: (*found.pods[NEW], pod)})


def test_room_that_a_newcomer_cannot_use_is_given_back_also_under_a_freeze() -> None:
    world = Full(1, Settings(ratio=50, strategy="resourceutil"), Bounds(4, 4))
    world.settle()
    world.room = 4
    world.push(Bounds(4, 4))
    while world.revisions[OLD].bounds.least == 4:
        world.step()
        world.cycle()
    while world.revisions[OLD].pods > 2:
        world.step()
    world.room = world.revisions[OLD].pods
    world.frozen = "a test doubts it"
    world.now += 700.0
    for _ in range(100):
        world.cycle()
    assert world.revisions[OLD].bounds == Bounds(4, 4)
    assert world.record is not None
    assert world.record.metadata.annotations["farmd.io/refused"] == NEW
    assert "no cpu" in world.record.metadata.annotations["farmd.io/cause"]
