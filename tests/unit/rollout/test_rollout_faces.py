"""What people see of a rollout under way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from farmd.observe.recorder import Metrics
from farmd.rollout.membership import floored
from farmd.rollout.metrics import PHASES
from farmd.rollout.view import Estimate, RolloutView, estimated, lines
from farmd.work.managing import Phases
from store.policies import Stage
from store.rollouts import GateStatus, RolloutStatus, SideStatus
from store.words import lasting
from tests.rollout_worlds import MOVING, NOW, rollout

STAGES = {"stages": [1, Stage(to="50%", bake=60.0), "100%"]}
BEGUN = rollout(10, 9, at=NOW - 252, policy=STAGES)


def sight(**fields: Any) -> RolloutView:
    told = {"reason": MOVING.reason, "owner": "farm-b", "state": "progressing", "status": MOVING} | fields
    return RolloutView(rollout=told.pop("rollout", BEGUN), old="web", new="web-5d01c2", **told)


def test_the_status_shows_both_versions_with_bars_the_floor_and_what_is_due() -> None:
    assert lines(sight(), NOW) == [
        "web  moving  stage 2 of 3 (5 of 10)  4m12s, eta 17m48s, deadline in 8m50s  farm-b",
        "  old  web         aaaaaaaaaaaa  7 of 7 serve    ███████░░░",
        "  new  web-5d01c2  bbbbbbbbbbbb  2 of 3 settled  ██░░░░░░░░  n7/web starting",
        "  floor 9 = 7 old + 2 new: nothing may leave until n7/web is available",
    ]


def test_each_gate_has_a_line_with_its_last_answer() -> None:
    gates = (
        GateStatus(name="errors", text="0.12 <= 0.5", at=NOW - 8, passes=3, wanted=3),
        GateStatus(name="ready", text="503, expected 200", at=NOW - 90, failures=2, wanted=3),
        GateStatus(name="late", text="not asked yet", wanted=3),
    )
    shown = lines(sight(status=msgspec.structs.replace(MOVING, gates=gates)), NOW)
    assert shown[-3:] == [
        "  gate errors  0.12 <= 0.5, passed 3 of 3, 8s ago",
        "  gate ready  503, expected 200, failed 2 of 3, 1m30s ago",
        "  gate late  not asked yet, passed 0 of 3",
    ]


def test_on_a_narrow_terminal_bars_are_left_out_and_lines_are_folded() -> None:
    shown = lines(sight(reason="stage 3 waits for farmctl rollout approve web"), NOW, 40)
    assert max(map(len, shown)) <= 40
    assert not any("█" in line for line in shown)
    assert shown[:2] == ["web  moving  stage 2 of 3 (5 of 10)", "    4m12s, eta 17m48s, deadline in 8m50s"]


def test_before_a_farm_works_on_it_the_status_says_why_not() -> None:
    found = sight(status=None, owner="", state="unowned", reason="no farm is running")
    assert lines(found, NOW) == ["web  unowned  no farm", "  no farm is running"]


def test_on_the_way_back_the_old_version_is_waited_for() -> None:
    back = msgspec.structs.replace(MOVING, phase="halted", back=True, due=0.0)
    shown = lines(sight(status=back, reason="paused"), NOW)
    assert shown[0] == "web  halted, going back  stage 2 of 3 (5 of 10)  4m12s  farm-b"
    assert shown[1].endswith("n7/web starting")
    assert not shown[2].endswith("n7/web starting")
    assert shown[-1] == "  paused"


@pytest.mark.parametrize(
    ("floor", "old", "new", "ailing", "words"),
    [
        (9, 7, 2, "n7/web", "floor 9 = 7 old + 2 new: nothing may leave until n7/web is available"),
        (9, 7, 1, "", "floor 9 > 7 old + 1 new: nothing may leave"),
        (9, 7, 3, "", "floor 9 < 7 old + 3 new: 1 may leave"),
        (0, 0, 0, "", "floor 0 = 0 old + 0 new: nothing may leave"),
    ],
)
def test_the_floor_is_told_as_a_sum(floor: int, old: int, new: int, ailing: str, words: str) -> None:
    assert floored(floor, old, new, ailing) == words


def status(stage: int, new: int, **fields: Any) -> RolloutStatus:
    told = {"phase": "moving", "minimum": 9, "stages": 3, "new": SideStatus(new, new, new)} | fields
    return RolloutStatus(state="progressing", stage=stage, **told)


ESTIMATES = [
    # Two pods in 252 s, eight to come, and a rest of 60 s.
    (status(2, 2), {}, Estimate(8 * 126 + 60)),
    # Five pods in 192 s, as 60 s were a rest; five to come.
    (status(3, 5), {}, Estimate(5 * 192 / 5)),
    # 20 s of the rest are over.
    (status(2, 5, phase="baking", began=NOW - 20), {}, Estimate(40 + 5 * 232 / 5)),
    (status(1, 0), {}, None),
    (status(2, 2, phase="halted"), {}, None),
    (status(2, 2, back=True), {}, None),
    (status(2, 2), {"paused": True}, None),
    (status(2, 2), {"wish": "revert"}, None),
    (status(2, 5, asks=3), {}, None),
    (status(9, 5), {}, None),
    (
        status(2, 2),
        {"policy": {"stages": [1, "50%", Stage(to="100%", approve=True)]}},
        Estimate(3 * 126, approval=3),
    ),
]


@pytest.mark.parametrize(("found", "fields", "expected"), ESTIMATES)
def test_the_end_is_estimated_from_the_pace_without_rests(
    found: RolloutStatus, fields: dict[str, Any], expected: Estimate | None
) -> None:
    begun = rollout(10, 9, **({"at": NOW - 252, "policy": STAGES} | fields))
    assert estimated(begun, found, NOW) == expected


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (8.4, "8s"), (60, "1m"), (252, "4m12s"), (7500, "2h5m"), (273_600, "3d4h"), (-1, "0s")],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_the_metric_counts_each_rollout_in_its_last_phase_until_its_worker_ends() -> None:
    registry = CollectorRegistry()
    phases = Phases(Metrics(registry), "farmd_rollouts", "phase", PHASES, target="rc")
    for rollout_id, phase in (("a", "moving"), ("b", "moving"), ("a", "halted"), ("c", "baking"), ("b", "")):
        phases.see(rollout_id, phase)
    shown = {
        phase: registry.get_sample_value("farmd_rollouts", {"target": "rc", "phase": phase})
        for phase in ("pending", "moving", "baking", "halted", "back")
    }
    assert shown == {"pending": 0, "moving": 0, "baking": 1, "halted": 1, "back": 0}
