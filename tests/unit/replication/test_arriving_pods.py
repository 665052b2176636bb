"""Pods that a plan places do not serve yet: what it replaces at the same time counts them (W17)."""

from __future__ import annotations

from farmd.replication.plan import decide
from tests.rc_worlds import NEWER, NOW, controller, offered, pod, world

OLD = pod(manifest=NEWER)
LOST = pod(lost=NOW - 100, retained=False, absent=True, manifest=NEWER)


def test_w17_while_a_lost_pod_moves_nothing_that_serves_is_replaced() -> None:
    pods = {"n1": LOST, "n2": OLD, "n3": OLD}
    plan = decide(world(controller(3), pods, offer=offered("moves", ["n4"])))
    assert [new.node for _, new in plan.moves] == ["n4"]
    assert plan.replacements == ()


def test_w17_while_pods_are_added_nothing_that_serves_is_replaced() -> None:
    pods = {"n1": OLD, "n2": OLD}
    plan = decide(world(controller(3), pods, offer=offered("additions", ["n3"])))
    assert [place.node for place in plan.additions] == ["n3"]
    assert plan.replacements == ()


def test_w17_what_is_left_of_max_unavailable_is_used() -> None:
    pods = {"n1": LOST, "n2": OLD, "n3": OLD}
    rc = controller(3, max_unavailable=2)
    plan = decide(world(rc, pods, offer=offered("moves", ["n4"])))
    assert [place[0] for place in plan.replacements] == ["n2"]
