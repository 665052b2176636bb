"""Which stage comes next: the vectors of Knative's progressive rollout, and what its maths promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farmd.rollout.staging import (
    NoRevisionGrows,
    RolloutOrchestrator,
    Scales,
    TargetRevision,
    delta,
    gauge,
    last_stage_complete,
    next_stage,
    overdue_shift,
    paced,
    remove_non_traffic_rev,
    retrieve_revs_up_down,
)

Stage = tuple[TargetRevision, ...]


def rev(
    name: str,
    percent: int | None,
    replicas: int | None = None,
    direction: str = "",
    scale: int | None = None,
    latest: bool | None = None,
) -> TargetRevision:
    return TargetRevision(
        revision_name=name,
        percent=percent,
        target_replicas=replicas,
        direction=direction,  # type: ignore[arg-type]
        min_scale=scale,
        max_scale=scale,
        latest_revision=latest,
    )


def told(stage: Stage) -> str:
    """A stage as the vectors have it: ``A 75/3 down``."""
    shown = [
        f"{each.revision_name} {'nil' if each.percent is None else each.percent}"
        f"/{'nil' if each.target_replicas is None else each.target_replicas} {each.direction}"
        for each in stage
    ]
    return "; ".join(shown)


def rollout(initial: Stage, *target: TargetRevision) -> RolloutOrchestrator:
    return RolloutOrchestrator(name="web", initial_revisions=initial, target_revisions=target)


def stages(begun: RolloutOrchestrator, ratio: int, replicas: dict[str, int]) -> list[Stage]:
    """All stages to the end, where each settles at its goal and nobody asks for more."""
    found, scales = list[Stage](), dict(replicas)
    while not last_stage_complete(begun.stage_revision_status, begun.target_revisions):
        begun = next_stage(begun, ratio, Scales(scales, frozenset(scales)))
        stage = begun.stage_target_revisions
        found.append(stage)
        scales |= {each.revision_name: each.target_replicas for each in stage if each.target_replicas}
        begun = replace(begun, stage_ready=True, stage_revision_status=remove_non_traffic_rev(stage))
        assert len(found) <= 100
    return found


# -- one stage ----------------------------------------------------------------------------------
def test_gauge() -> None:
    found = gauge((rev("rev-001", 30),), Scales({"rev-001": 4}))
    assert (found.replicas, found.percent) == (4, 30)


@pytest.mark.parametrize(
    ("staged", "expected"),
    [(frozenset({"a", "b"}), (9, 50)), (frozenset({"a"}), (4, 50)), (None, (4, 50))],
    ids=["denser", "not sparser", "not known"],
)
def test_gauge_takes_the_denser_of_those_with_bounds(
    staged: frozenset[str] | None, expected: tuple[int, int]
) -> None:
    found = gauge((rev("a", 50), rev("b", 50)), Scales({"a": 4, "b": 9}, staged))
    assert (found.replicas, found.percent) == expected


def test_gauge_credits_an_adopted_revision_that_rests_at_its_minimum_with_its_share() -> None:
    found = gauge((rev("a", 80, scale=10), rev("b", 20, scale=10)), Scales({"a": 10, "b": 10}, frozenset()))
    assert found.known == {"a": 8, "b": 2}


@pytest.mark.parametrize(("given", "expected"), [((10, 80, 40), (5, 40)), ((6, 100, 40), (2, 34))])
def test_delta(given: tuple[int, int, int], expected: tuple[int, int]) -> None:
    assert delta(*given) == expected


FIRST = rollout((rev("rev-001", 100, scale=4),), rev("rev-002", 100, scale=6, latest=True))
MIDWAY: Stage = (
    rev("rev-001", 80, 8, "down", 10, latest=False),
    rev("rev-002", 20, 2, "up", 10, latest=True),
)
SECOND = RolloutOrchestrator(
    name="web",
    initial_revisions=(rev("rev-001", 100, scale=10),),
    target_revisions=(rev("rev-002", 100, scale=10, latest=True),),
    stage_target_revisions=MIDWAY,
    stage_revision_status=MIDWAY,
    stage_ready=True,
)
WHOLE = rollout((rev("rev-001", 100, scale=8),), rev("rev-002", 100, scale=10, latest=True))
NEXT = [
    (FIRST, 30, {"rev-001": 4}, "rev-001 75/3 down; rev-002 25/1 up"),
    (SECOND, 20, {"rev-001": 8, "rev-002": 2}, "rev-001 60/6 down; rev-002 40/4 up"),
    (WHOLE, 100, {"rev-001": 8}, "rev-001 nil/0 down; rev-002 100/10 up"),
]


@pytest.mark.parametrize(("begun", "ratio", "replicas", "expected"), NEXT)
def test_update_stage_target_revisions(
    begun: RolloutOrchestrator, ratio: int, replicas: dict[str, int], expected: str
) -> None:
    found = next_stage(begun, ratio, Scales(replicas), finish=120.0)
    assert told(found.stage_target_revisions) == expected
    assert [each.latest_revision for each in found.stage_target_revisions] == [False, True]
    assert found.target_finish_time == 120.0
    assert found.initial_revisions == begun.initial_revisions
    assert found.stage_revision_status == begun.stage_revision_status


def test_a_stage_that_is_not_done_stays() -> None:
    begun = replace(SECOND, stage_ready=None)
    assert next_stage(begun, 20, Scales({})) == begun


def test_a_rollout_that_is_not_staged_or_has_several_targets_jumps() -> None:
    assert next_stage(FIRST, 30, Scales({}), staged=False).stage_target_revisions == FIRST.target_revisions
    split = rollout(FIRST.initial_revisions, rev("rev-001", 30), rev("rev-002", 70))
    found = next_stage(split, 30, Scales({}), finish=9.0)
    assert (found.stage_target_revisions, found.target_finish_time) == (split.target_revisions, 0.0)


def test_without_a_beginning_it_jumps() -> None:
    begun = rollout((rev("rev-001", 0),), rev("rev-002", 100))
    assert next_stage(begun, 10, Scales({})).stage_target_revisions == begun.target_revisions


def test_the_beginning_is_what_the_last_stage_left_once_there_was_one() -> None:
    left = (rev("00002", 20), rev("00003", 80))
    begun = rollout((rev("00002", 100),), rev("00003", 100))
    unfinished = replace(begun, stage_revision_status=left)
    stage = next_stage(unfinished, 10, Scales({"00002": 10})).stage_target_revisions
    assert told(stage) == "00002 90/9 down; 00003 10/1 up"


def test_get_start_revisions_are_the_initial_ones_before_any_stage_is_over() -> None:
    begun = rollout((rev("00002", 20), rev("00003", 80)), rev("00004", 100))
    stage = next_stage(begun, 10, Scales({"00002": 2, "00003": 8})).stage_target_revisions
    assert told(stage) == "00002 20/nil stay; 00003 70/7 down; 00004 10/1 up"
    left = replace(begun, stage_revision_status=begun.initial_revisions)
    assert next_stage(left, 10, Scales({"00002": 2, "00003": 8})).stage_target_revisions == stage


def test_a_target_that_is_pinned_stays_pinned() -> None:
    pinned = rollout((rev("rev-002", 100),), rev("rev-001", 100, latest=False))
    stage = next_stage(pinned, 10, Scales({"rev-002": 10})).stage_target_revisions
    assert [each.latest_revision for each in stage] == [False, False]


# -- whole rollouts -----------------------------------------------------------------------------
COURSES = [
    (1, 1, [10], "nil/0→100/1", 2),
    (2, 2, [10], "50/1→50/1; nil/0→100/2", 3),
    (3, 3, [10, 50], "66/2→34/1; 33/1→67/2; nil/0→100/3", 4),
    (4, 4, [0, 10, 25], "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/4", 5),
    (
        7,
        7,
        [20],
        "85/6→15/1; 70/5→30/2; 56/4→44/3; 42/3→58/4; 28/2→72/5; 14/1→86/6; nil/0→100/7",
        8,
    ),
    (
        8,
        8,
        [10],
        "87/7→13/1; 74/6→26/2; 61/5→39/3; 48/4→52/4; 36/3→64/5; 24/2→76/6; 12/1→88/7; nil/0→100/8",
        9,
    ),
    (8, 8, [30], "75/6→25/2; 50/4→50/4; 25/2→75/6; nil/0→100/8", 10),
    (
        10,
        10,
        [10],
        "; ".join([*(f"{90 - 10 * n}/{9 - n}→{10 + 10 * n}/{1 + n}" for n in range(9)), "nil/0→100/10"]),
        11,
    ),
    (4, 6, [30], "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/6", 7),
    (5, 10, [20], "80/4→20/1; 60/3→40/2; 40/2→60/3; 20/1→80/4; nil/0→100/10", 11),
    (4, 40, [10], "75/3→25/1; 50/2→50/2; 25/1→75/3; nil/0→100/40", 41),
    (8, 10, [100], "nil/0→100/10", 18),
]


@pytest.mark.parametrize(("began", "total", "ratios", "expected", "peak"), COURSES)
def test_one_revision_after_another(
    began: int, total: int, ratios: list[int], expected: str, peak: int
) -> None:
    for ratio in ratios:
        begun = rollout((rev("A", 100, scale=began),), rev("B", 100, scale=total))
        found = stages(begun, ratio, {"A": began})
        shown = "; ".join(told(stage) for stage in found)
        wanted = "; ".join("A {} down; B {} up".format(*each.split("→")) for each in expected.split("; "))
        assert shown == wanted
        olds = [began, *(stage[0].target_replicas or 0 for stage in found)]
        assert (
            max(old + (stage[1].target_replicas or 0) for old, stage in zip(olds, found, strict=False))
            == peak
        )


THREE: Stage = (rev("A", 60, 6, "down", 10), rev("B", 40, 4, "up", 10))
TWO_TO_ONE = [
    (
        "C",
        [
            "A 60/nil stay; B 20/2 down; C 20/2 up",
            "A 60/nil stay; B nil/0 down; C 40/4 up",
            "A 40/4 down; C 60/6 up",
            "A 20/2 down; C 80/8 up",
            "A nil/0 down; C 100/10 up",
        ],
    ),
    ("A", ["A 80/8 up; B 20/2 down", "A 100/10 up; B nil/0 down"]),
]


@pytest.mark.parametrize(("target", "expected"), TWO_TO_ONE, ids=["third", "back"])
def test_many_revisions_to_one(target: str, expected: list[str]) -> None:
    found = stages(rollout(THREE, rev(target, 100, scale=10)), 20, {"A": 6, "B": 4})
    assert [told(stage) for stage in found] == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [(7, "A 85/6 down; B 15/1 up"), (1, "A nil/0 down; B 100/1 up"), (0, "B 100/nil ")],
)
def test_driven_by_traffic(pods: int, expected: str) -> None:
    begun = rollout((rev("A", 100),), rev("B", 100))
    stage = next_stage(begun, 10, Scales({"A": pods}, frozenset({"A"}))).stage_target_revisions
    assert told(stage) == expected


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (10, "A 81/9 down; B 19/1 up"),
        (9, "A 90/9 down; B 10/1 up"),
        (8, "A 90/9 down; B 10/1 up"),  # clamped: upstream lets traffic flow back here
    ],
)
def test_an_overdue_stage_shifts_traffic_and_never_back(old: int, expected: str) -> None:
    stage = (rev("A", 90, 9, "down"), rev("B", 10, 1, "up"))
    found = overdue_shift(stage, 10, Scales({"A": old, "B": 1}, frozenset({"A", "B"})))
    assert told(found) == expected


def test_an_overdue_stage_shifts_to_the_revision_that_grows_wherever_it_stands() -> None:
    stage = (rev("C", 50, None, "stay"), rev("A", 40, 4, "down"), rev("B", 10, 1, "up"))
    found = overdue_shift(stage, 20, Scales({"C": 5, "A": 6, "B": 1}, frozenset({"A", "B", "C"})))
    assert told(found) == "C 50/nil stay; A 26/4 down; B 24/1 up"


def test_an_overdue_stage_shifts_no_more_than_the_revision_has_that_shrinks() -> None:
    stage = (rev("C", 35, None, "stay"), rev("A", 5, 1, "down"), rev("B", 60, 6, "up"))
    found = overdue_shift(stage, 20, Scales({"C": 5, "A": 10, "B": 6}, frozenset({"A", "B", "C"})))
    assert told(found) == "C 35/nil stay; A nil/1 down; B 65/6 up"


# -- the pieces ---------------------------------------------------------------------------------
def test_remove_non_traffic_rev() -> None:
    assert remove_non_traffic_rev([]) == ()
    assert remove_non_traffic_rev([rev("r1", 100), rev("r2", 0)]) == (rev("r1", 100),)
    both = (rev("r1", 50), rev("r2", 50))
    assert remove_non_traffic_rev(both) == both
    kept = rev("r2", 0, latest=True)
    assert remove_non_traffic_rev([rev("r1", 100), kept, rev("r3", None)]) == (rev("r1", 100), kept)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ((rev("r1", 0), rev("r2", 100)), True),
        ((rev("r1", 20), rev("r2", 80)), False),
        ((rev("r2", 100),), True),
    ],
)
def test_last_stage_complete(status: Stage, expected: bool) -> None:
    assert last_stage_complete(status, [rev("r2", 100)]) == expected


@pytest.mark.parametrize("first", ["", "up"])
def test_retrieve_revs_up_down(first: str) -> None:
    up, down = retrieve_revs_up_down([rev("r1", 20, None, first), rev("r2", 80, None, "down")])
    assert (list(up), list(down)) == (["r1"], ["r2"])
    assert retrieve_revs_up_down([rev("r1", 20, None, "up")])[1] == {}


def test_retrieve_revs_up_down_wants_one_that_grows() -> None:
    with pytest.raises(NoRevisionGrows, match=r"no revision that scales up.*r1 down"):
        retrieve_revs_up_down([rev("r1", 20, None, "down")])


# -- the pace of a policy -----------------------------------------------------------------------
def test_paced_makes_no_jump_where_there_are_more_in_the_end() -> None:
    assert paced(4, 40, 10) == (10, 20, 30, 40)
    assert paced(10, 10, 30) == (3, 6, 9, 10)
    assert paced(0, 5, 10) == (5,)
    assert paced(8, 2, 10) == (1, 1, 1, 1, 1, 1, 1, 2)


@given(st.integers(1, 100), st.integers(1, 100))
def test_together_they_never_have_more_than_the_ratio_says(total: int, ratio: int) -> None:
    found = paced(total, total, ratio)
    assert list(found) == sorted(set(found))
    assert found[-1] == total
    assert max(b - a for a, b in zip((0, *found), found, strict=False)) <= max(1, -(-total * ratio // 100))
