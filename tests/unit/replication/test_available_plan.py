"""R22: what a controller does while pods are healthy and not available yet, or on absent agents."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.pods.state import PodState
from farmd.replication import healing
from farmd.replication.plan import decide, removal_order, status
from tests.rc_worlds import NEWER, NOW, controller, moving, nodes, pod, world

SETTLES = pod(settles_in=4.0)
UNKNOWN = pod(absent=True)
DOWN = pod(healthy=False)
OLD, OLD_SETTLES, OLD_UNKNOWN, OLD_DOWN = (
    pod(manifest=NEWER, **fields)
    for fields in ({}, {"settles_in": 4.0}, {"absent": True}, {"healthy": False})
)


@pytest.mark.parametrize(
    ("case", "most", "pods", "replaced"),
    [
        ("one settles", 1, {"n1": OLD, "n2": SETTLES}, []),
        ("two may be unavailable", 2, {"n1": OLD, "n2": SETTLES}, ["n1"]),
        ("a farm that has just begun to look", 1, {"n1": OLD_SETTLES, "n2": OLD_SETTLES}, []),
        ("what settles serves", 1, {"n1": OLD_SETTLES, "n2": OLD_DOWN, "n3": pod()}, ["n2"]),
        ("R21: nobody knows, so it is not counted on", 1, {"n1": OLD, "n2": UNKNOWN}, []),
        ("R21: nor replaced, whatever is left", 3, {"n1": OLD, "n2": OLD_UNKNOWN}, ["n1"]),
        ("on a node that is given up it costs nothing", 1, {"n1": pod(manifest=NEWER, lost=1.0)}, ["n1"]),
    ],
)
def test_replacements_count_available_pods(
    case: str, most: int, pods: dict[str, PodState], replaced: list[str]
) -> None:
    rc = controller(len(pods), max_unavailable=most, on_lost="wait")
    assert nodes(decide(world(rc, pods)).replacements) == replaced, case


@pytest.mark.parametrize(
    ("case", "others", "chosen"),
    [
        ("the other is available", {"n2": pod()}, "n1"),
        ("the other settles", {"n2": SETTLES}, None),
        ("R21: the other's agent is absent", {"n2": UNKNOWN}, None),
    ],
)
def test_a_move_starts_only_while_the_others_are_available(
    case: str, others: dict[str, PodState], chosen: str | None
) -> None:
    drained = pod(retained=False, draining="gentle")
    place = healing.candidate(world(controller(2), {"n1": drained, **others}))
    assert (place[0] if place else None) == chosen, case
    assert healing.candidate(world(controller(2), {"n1": pod(healthy=False, retained=False), **others}))


def test_lost_pods_are_replaced_one_after_the_other_is_available() -> None:
    lost = pod(lost=NOW - 60, absent=True)
    for newest, going in ((pod(at=NOW - 5), ("n1",)), (pod(at=NOW - 5, settles_in=4.0), ())):
        shot = world(controller(2), {"n1": lost, "n2": newest})
        assert tuple(node for node, _ in healing.evacuees(shot)) == going


@pytest.mark.parametrize(
    ("case", "new", "desired", "move", "action", "after"),
    [
        ("it settles", SETTLES, 2, {}, None, 290.0),
        ("it is available", pod(), 2, {}, "finish", 290.0),
        ("late, and it settles", SETTLES, 2, {"deadline": NOW - 1}, None, None),
        ("late, and it failed meanwhile", DOWN, 2, {"deadline": NOW - 1}, "rollback", None),
        ("it settles where it may not stay", pod(settles_in=4.0, retained=False), 3, {}, None, 290.0),
        ("it settles, and fewer are desired", SETTLES, 1, {}, "cancel", 290.0),
    ],
)
def test_a_move_ends_when_the_new_pod_is_available(
    case: str, new: PodState, desired: int, move: dict[str, Any], action: str | None, after: float | None
) -> None:
    pods = {"n1": pod(retained=False), "n2": pod(), "n9": new}
    shot = world(controller(desired), pods, transfer=moving(**move))
    step = healing.advance(shot)
    assert (step.action if step else None, healing.look_again(shot)) == (action, after), case


def test_removal_takes_what_is_unhealthy_then_what_settles_then_the_newest() -> None:
    pods = {"a": pod(at=9.0), "b": pod(at=1.0), "c": SETTLES, "d": UNKNOWN, "e": pod(retained=False)}
    assert sorted(pods, key=lambda name: removal_order((name, "web"), pods[name])) == [
        "e",
        "d",
        "c",
        "a",
        "b",
    ]


def test_while_time_alone_is_missing_the_status_says_so() -> None:
    rc = controller(2, min_healthy_time=10.0)
    for other, state in ((SETTLES, "progressing"), (pod(), "converged")):
        shot = world(rc, {"n1": pod(), "n2": other})
        said = status(shot, decide(shot), "f", 0.0)
        assert (said.state, said.healthy) == (state, 2)
        assert ("healthy for 10 s without a break" in said.reason) == (state == "progressing")
