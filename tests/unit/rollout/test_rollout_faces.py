"""What people see of a rollout under way."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from farmd.cli.rollout_show import lines
from farmd.observe.metrics import Metrics
from farmd.overview import Row
from farmd.rollout.phases import Phases
from store.rollouts import Rollout
from tests.rollout_worlds import MOVING, NOW, rollout


def test_the_status_shows_both_versions_with_bars_and_what_it_waits_for() -> None:
    row: Row[Rollout] = Row(record=rollout(10, 9, at=NOW - 252), index=7, owner="farm-b", status=MOVING)
    assert lines(row, NOW) == [
        "web  moving  stage 2 of 3 (to 5 of 10)  for 4m  farm-b",
        "  old  aaaaaaaaaaaa  ███████░░░  7 of 7 available, 7 placed",
        "  new  bbbbbbbbbbbb  ██░░░░░░░░  2 of 3 available, 3 placed",
        "  floor 9: 7 old and 2 new are available",
        "  floor 9, available 7 old + 2 new: nothing may leave: n7/web is not available yet",
    ]


def test_the_metric_counts_each_rollout_in_its_last_phase_until_its_worker_ends() -> None:
    registry = CollectorRegistry()
    phases = Phases(Metrics(registry))
    for rollout_id, phase in (("a", "moving"), ("b", "moving"), ("a", "halted"), ("c", "baking"), ("b", "")):
        phases.see(rollout_id, phase)
    shown = {
        phase: registry.get_sample_value("farmd_rollouts", {"phase": phase})
        for phase in ("pending", "moving", "baking", "halted", "back")
    }
    assert shown == {"pending": 0, "moving": 0, "baking": 1, "halted": 1, "back": 0}
