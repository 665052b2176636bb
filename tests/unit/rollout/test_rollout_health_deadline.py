"""A version that is known to be unhealthy fails after ``health_deadline``, before ``progress_deadline``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.commands.specs import check_policy
from farmd.pods.state import PodState
from farmd.rollout.creation import begun
from store.errors import InputInvalid
from store.policies import Policy
from store.reality import Glance
from store.rollouts import RolloutState
from tests.rollout_worlds import NEW, NEWER, NOW, POD, World, on, pod, rollout

MOVING = RolloutState(phase="moving", since=NOW)


def sick(since: float) -> PodState:
    seen = Glance(NEWER, NEW, "running", since, "critical", 5, since)
    return msgspec.structs.replace(pod(NEW, at=since), reality=seen)


def world(new: dict[Any, PodState], **policy: Any) -> World:
    told = {"stages": ["100%"], "progress_deadline": 600.0, "health_deadline": 120.0, **policy}
    made = World(rollout(4, 3, policy=told), on(4 - len(new)), new, state=MOVING)
    made.risen = NOW
    return made


def failed(made: World, after: float) -> str:
    """Why it has turned back by then; empty: it has not."""
    made.now = NOW + after
    plan = made.decide()
    return plan.turn.reason if plan.turn is not None and plan.turn.action == "back" else ""


def test_it_fails_after_the_health_deadline_by_its_name() -> None:
    made = world({("n9", POD): sick(NOW)})
    assert failed(made, 119.0) == ""
    assert made.decide().after == 1.0
    assert failed(made, 120.0) == "120 s unhealthy: 1 of 1 pods do not stay available: n9/web not healthy"


@pytest.mark.parametrize(
    ("state", "fails"),
    [
        (sick(NOW - 900), True),  # counted from the beginning of this way, not from before
        (pod(NEW, healthy=None, at=NOW), False),
        (msgspec.structs.replace(sick(NOW), absent=True), False),
        (pod(NEW, at=NOW, settles_in=400.0), False),
        (msgspec.structs.replace(sick(NOW), lost=NOW), False),
    ],
    ids=["sick before", "nothing known", "absent", "settling", "lost"],
)
def test_only_a_pod_that_its_node_calls_unhealthy_counts(state: PodState, fails: bool) -> None:
    made = world({("n9", POD): state})
    assert failed(made, 119.0) == ""
    assert bool(failed(made, 121.0)) == fails


def test_records_of_earlier_versions_wait_for_progress_deadline_as_before() -> None:
    made = world({("n9", POD): sick(NOW)}, health_deadline=None)
    assert failed(made, 599.0) == ""
    assert failed(made, 600.0).startswith("600 s without progress")


def test_pods_that_need_not_be_available_do_not_count() -> None:
    made = world({("n8", POD): sick(NOW), ("n9", POD): pod(NEW, healthy=None)}, tolerate=1)
    assert failed(made, 300.0) == ""


def test_a_way_back_does_not_fail_for_it() -> None:
    made = world({("n9", POD): sick(NOW)})
    made.state = msgspec.structs.replace(MOVING, back=True, cause="it failed")
    made.now = NOW + 300
    plan = made.decide()
    assert plan.turn is None or plan.turn.action != "halt"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), 300.0),
        (Policy(progress_deadline=60.0), 60.0),
        (Policy(health_deadline=20.0), 20.0),
        (Policy(health_deadline=0.0), 0.0),
    ],
)
def test_a_new_rollout_has_five_minutes_unless_its_policy_has_another_deadline(
    policy: Policy, expected: float
) -> None:
    assert begun(policy).health_deadline == expected


def test_it_is_not_above_progress_deadline() -> None:
    with pytest.raises(
        InputInvalid, match=r"rollout\.health_deadline: found 700 s, expected at most progress"
    ):
        check_policy(Policy(health_deadline=700.0), "rollout")
