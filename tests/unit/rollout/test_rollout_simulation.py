"""A dry run tells what the planner that acts will do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.rollout import plan as planning
from farmd.rollout.facts import Snapshot
from farmd.rollout.simulate import simulate
from store.policies import Stage
from tests.effort import tries
from tests.rollout_worlds import NEW, OLD, World, controller, on, rollout

SHOWN = [
    (
        rollout(10, 9, policy={"stages": [1, Stage(to="50%", bake=300.0), Stage(to="100%", approve=True)]}),
        (),
        [
            "stage 1 of 3  old/new 10/0 9/1",
            "stage 2 of 3  old/new 8/2 7/3 6/4 5/5  then rests 300 s",
            "stage 3 of 3  old/new 4/6 3/7 2/8 1/9 0/10  after approval",
            "at least 9 available; in place, no free nodes needed",
        ],
    ),
    (
        rollout(100, 99),
        (),
        [
            "stage 1 of 1  old/new 100/0 99/1 98/2 97/3 96/4 ... 1/99 0/100",
            "at least 99 available; in place, no free nodes needed",
        ],
    ),
    (
        rollout(4, 3, began=2),
        (),
        [
            "stage 1 of 1  old/new 2/0 2/1 2/2 1/3 0/4",
            "at least 3 available; 2 pods need places on other nodes",
        ],
    ),
    (
        rollout(2, 1),
        [("n000", "web")],
        [
            "stage 1 of 1  old/new 2/0 1/1 0/2",
            "at least 1 available; 1 pod needs a place on another node",
        ],
    ),
    (
        rollout(3, 2, policy={"leave_old": True}, began=5),
        (),
        [
            "stage 1 of 1  old/new 5/0 2/3",
            "at least 2 available; in place, no free nodes needed",
        ],
    ),
    (
        rollout(4, 0, policy={"strategy": "availability", "minimum": None, "ratio": 50, "stages": []}),
        (),
        [
            "stage 1 of 2  old/new 4/0 4/2 2/2",
            "stage 2 of 2  old/new 2/4 0/4",
            "at least 4 available; at most 6 pods: 2 free nodes needed",
        ],
    ),
    (
        rollout(4, 0, policy={"strategy": "resourceutil", "minimum": None, "stages": ["50%", "100%"]}),
        (),
        [
            "stage 1 of 2  old/new 4/0 2/0 2/2",
            "stage 2 of 2  old/new 0/2 0/4",
            "at least 2 available; at most 4 pods: old ones go first",
        ],
    ),
    (
        rollout(4, 0, policy={"strategy": "blue-green", "minimum": None, "stages": []}, service="77aa"),
        (),
        [
            "stage 1 of 2  old/new 4/0 4/4",
            "stage 2 of 2  old/new 0/4  600 s after the switch",
            "at least 4 available; at most 8 pods: 4 free nodes needed",
        ],
    ),
]


@pytest.mark.parametrize(("begun", "unfit", "lines"), SHOWN)
def test_it_tells_the_counts_of_each_stage(begun: Any, unfit: Any, lines: list[str]) -> None:
    found = simulate(begun, controller(OLD, begun.started_from), controller(NEW, begun.started_to), unfit)
    assert found.lines() == lines


def test_new_pods_with_numbered_instances_need_no_nodes_of_their_own() -> None:
    begun = rollout(4, 0, policy={"strategy": "availability", "minimum": None, "ratio": 50, "stages": []})
    found = simulate(begun, controller(OLD, 4), controller(NEW, 0, numbered=True))
    assert found.lines()[-1] == "at least 4 available; at most 6 pods: new pods may run beside old ones"


def test_a_step_looks_at_a_few_pods_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, decide = [], planning.decide

    def counting(shot: Snapshot) -> Any:
        assert shot.old is not None
        assert shot.new is not None
        seen.append(len(shot.old.pods) + len(shot.new.pods))
        return decide(shot)

    monkeypatch.setattr(planning, "decide", counting)
    begun = rollout(1000, 999)
    unfit = [(f"n{number}", "web") for number in range(500)]
    found = simulate(begun, controller(OLD, 1000), controller(NEW, 0), unfit)
    assert (len(found.stages[0].counts), found.elsewhere) == (1001, 500)
    assert max(seen) < 20
    assert len(seen) < 5 * 1000


@settings(max_examples=tries(150), deadline=None)
@given(st.data())
def test_it_tells_what_the_planner_does_in_a_world_where_nothing_fails(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 25), "replicas")
    began = data.draw(st.integers(0, 25), "replicas before")
    strategy = data.draw(st.sampled_from(["rolling", "availability", "resourceutil", "blue-green"]))
    minimum = data.draw(st.integers(0, max(0, total - 1)), "minimum")
    parts = sorted(data.draw(st.sets(st.integers(1, total), max_size=4), "stages") | {total})
    rests = data.draw(st.sampled_from([0.0, 30.0]), "bake")
    leave = data.draw(st.booleans(), "leave old")
    stages = [Stage(to=part, bake=rests) for part in parts]
    policy = {"strategy": strategy, "stages": stages, "leave_old": leave}
    begun = rollout(total, minimum, began=began, policy=policy)
    world = World(begun, on(began), free=[f"free{number}" for number in range(40)])
    acted = acts(world)
    found = simulate(begun, controller(OLD, began), controller(NEW, 0))
    assert [counts for stage in found.stages for counts in stage.counts] == acted
    assert (found.stopped == "") == (world.outcome == "done")


def acts(world: World) -> list[tuple[int, int]]:
    """Both counts after each transaction of the acting planner."""
    seen = [(len(world.old), len(world.new))]
    for _ in range(1000):
        plan = world.step()
        if world.outcome:
            return seen
        counts = (world.counts.get(OLD, len(world.old)), world.counts.get(NEW, len(world.new)))
        if counts != seen[-1]:
            seen.append(counts)
        elif plan.turn is None and any(state.reality is None for state in world.new.values()):
            world.settle()
        elif plan.turn is None and world.ending:
            world.settle()
        elif plan.turn is None:
            world.now += 60.0
    return seen
