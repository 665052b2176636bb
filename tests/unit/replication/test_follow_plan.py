"""When a controller that follows config keys may begin a rollout (R41): pure."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.replication.plan import decide, status
from farmd.work.owned import Following
from tests.rc_worlds import NOW, controller, pod, world

DUE = Following(changed=("shop/level",), due=True)


def decided(following: Following, *, frozen: str | None = None, pods: int = 1, **fields: Any) -> Any:
    seen = {f"n{number}": pod() for number in range(pods)}
    snapshot = world(controller(1, **fields), seen, following=following, frozen=frozen)
    return snapshot, decide(snapshot)


def test_r41_a_rollout_begins_once_nothing_else_is_left_to_do() -> None:
    assert decided(DUE)[1].follows == ("shop/level",)
    assert decided(DUE, pods=2)[1].follows == ()  # a pod is to be removed first


@pytest.mark.parametrize(
    "fields",
    [{"disabled": True}, {"deleting": True}, {"managed_by": "rollouts/1"}, {"frozen": "doubt"}],
    ids=str,
)
def test_r41_what_people_said_a_manager_and_a_freeze_come_first(fields: dict[str, Any]) -> None:
    assert decided(DUE, **fields)[1].follows == ()


@pytest.mark.parametrize(("stuck", "state"), [(True, "blocked"), (False, "converged")])
def test_r41_the_status_says_why_nothing_begins(stuck: bool, state: str) -> None:
    why = Following(changed=("shop/level",), text="config/shop/level does not exist", stuck=stuck, after=30.0)
    snapshot, plan = decided(why)
    said = status(snapshot, plan, "f1", NOW)
    assert (said.state, said.reason, plan.after) == (state, why.text, 30.0)
