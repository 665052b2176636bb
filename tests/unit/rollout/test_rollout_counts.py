"""p2's arithmetic: its own vectors (spec 01 §7.4), and its property tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.pods.state import PodState
from farmd.rollout.facts import Side
from farmd.rollout.membership import counts
from store.pods import Place
from store.rollouts import RolloutState
from tests.rollout_worlds import NEW, NOW, OLD, POD, World, controller, on, pod, rollout

VECTORS = [
    ("would block 1", (1, 1, 2, 1, 3, 4), (0, 0)),
    ("would block 2", (1, 1, 1, 1, 2, 4), (0, 0)),
    ("would block 3", (1, 4, -1, 4, 3, 4), (0, 0)),
    ("would block 5", (1, 3, 3, 3, 6, 3), (3, 3)),
    ("would block 6", (3, 0, 6, 0, 6, 0), (6, 6)),
    ("increases 1", (0, 0, 0, 0, 3, 2), (0, 1)),
    ("increases 2", (0, 1, 0, 1, 3, 2), (0, 1)),
    ("increases 3", (0, 2, 0, 2, 3, 2), (0, 1)),
    ("increases 4", (0, 0, 0, 0, 3, 0), (0, 3)),
    ("increases 5", (3, 0, 3, 0, 4, 2), (1, 2)),
    ("increases 6", (3, 0, 3, 0, 4, 3), (0, 1)),
    ("initial", (3, 0, 3, 0, 3, 2), (1, 1)),
    ("initial unknown", (0, 0, 3, 0, 3, 2), (0, 0)),
    ("from zero", (0, 0, 0, 0, 3, 2), (0, 1)),
    ("midway unhealthy", (2, 0, 2, 1, 3, 2), (0, 0)),
    ("midway unhealthy, from zero", (0, 0, 0, 1, 3, 2), (0, 0)),
    ("midway healthy", (2, 1, 2, 1, 3, 2), (1, 1)),
    ("midway unknown", (0, 1, 2, 1, 3, 2), (0, 0)),
    ("desire less than healthy", (5, 0, 3, 2, 5, 3), (0, 0)),
    ("new satisfies, not all desired healthy", (1, 1, 1, 2, 3, 1), (1, 1)),
    ("new satisfies", (0, 2, 0, 2, 3, 2), (0, 1)),
    ("a decrease is not compensated", (5, 0, 5, 0, 3, 2), (3, 3)),
]


@pytest.mark.parametrize(("name", "given", "expected"), VECTORS, ids=[row[0] for row in VECTORS])
def test_p2s_vectors(name: str, given: tuple[int, ...], expected: tuple[int, int]) -> None:
    old, new, old_desired, new_desired, total, minimum = given
    assert counts(old, new, old_desired, new_desired, total, minimum, total) == expected


@given(st.integers(1, 40), st.data())
def test_p2s_properties(total: int, data: st.DataObject) -> None:
    """Iterated with equal counts it keeps the floor, never passes the goal, and ends."""
    minimum = data.draw(st.integers(0, total - 1))
    new = data.draw(st.integers(0, total))
    old = total - new
    steps = 0
    while new < total:
        remove, add = counts(old, new, old, new, total, minimum, total)
        assert remove == add > 0
        assert old - remove + new >= min(minimum, total)
        old, new, steps = old - remove, new + add, steps + 1
        assert new <= total
        assert steps <= 50
    assert counts(old, new, old, new, total, minimum, total) == (0, 0)


COUNTED: list[tuple[str, dict[Place, PodState], tuple[int, int, int]]] = [
    ("all pass", on(3), (3, 3, 0)),
    ("all fail", on(3, healthy=False), (3, 0, 0)),
    ("nobody knows", on(3, healthy=None), (3, 0, 0)),
    ("one has another manifest", {**on(2), ("n9", POD): pod(NEW)}, (3, 2, 0)),
    ("none is there", {}, (0, 0, 3)),
    ("more than desired", on(5), (5, 3, 0)),
]


@pytest.mark.parametrize(("name", "pods", "expected"), COUNTED, ids=[row[0] for row in COUNTED])
def test_p2s_counting(name: str, pods: dict[Place, PodState], expected: tuple[int, int, int]) -> None:
    """Of three desired pods: how many stand, count as available, and are missing."""
    side = Side(controller(OLD, 3), pods, mixed=True)
    assert (side.placed, side.settled, side.missing) == expected


def test_a_pod_of_a_superseded_version_that_is_forced_away_holds_back_no_other() -> None:
    gone = pod(NEW, draining="forced", retained=False)
    side = Side(controller(OLD, 4), {**on(2), ("n8", POD): gone, ("n9", POD): gone}, mixed=True)
    assert (side.available, side.settled, side.serving) == (2, 2, 2)


STOPS = [(3, 0, False), (3, 2, False), (3, 3, True), (1, 0, False), (1, 1, True)]


@pytest.mark.parametrize(("total", "count", "over"), STOPS)
def test_p2s_end_is_when_all_pods_are_there(total: int, count: int, over: bool) -> None:
    """p2 asks for no health in the end, which ``require_healthy_end: false`` does not either."""
    begun = rollout(total, 0, began=0, policy={"require_healthy_end": False})
    world = World(begun, {}, on(count, NEW, healthy=False), counts={OLD: 0, NEW: count})
    world.state = RolloutState(phase="moving", since=NOW)
    world.step()
    assert world.outcome == ("done" if over else "")
