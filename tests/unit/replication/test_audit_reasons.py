"""Why: what the audit says of each kind of change."""

from __future__ import annotations

from typing import Any

import pytest

from farmd.pods.state import PodState
from farmd.replication.facts import Snapshot
from farmd.replication.plan import decide
from tests.rc_worlds import NEWER, NOW, controller, offered, pod, world

LOST = pod(lost=NOW - 60, retained=False)
FORCED = pod(draining="forced", retained=False)
BARE = PodState(pod().pod, None, None)


@pytest.mark.parametrize(
    ("shot", "reason"),
    [
        (world(controller(3), {"n1": pod()}, offer=offered("additions", ["n2"])), "2 of 3 pods missing"),
        (world(controller(1), {"n1": pod(), "n2": pod()}), "1 pod more than 1"),
        (world(controller(2), {"n1": LOST, "n2": pod()}, offer=offered("moves", ["n9"])), "lost: n1"),
        (
            world(controller(2), {"n1": FORCED, "n2": pod()}, offer=offered("moves", ["n9"])),
            "forced drain of n1",
        ),
        (
            world(controller(1), {"n1": FORCED}, offer=offered("moves", [], missing=1)),
            "a forced drain, and no place elsewhere",
        ),
        (world(controller(1), {"n1": BARE}), "intents were lost or changed"),
        (world(controller(1), {"n1": pod(manifest=NEWER)}), "another manifest is requested"),
        (world(controller(1, restart=1), {"n1": pod()}), "a restart is requested"),
        (
            world(controller(2, restart=1), {"n1": pod(manifest=NEWER, healthy=False), "n2": pod(acted=4)}),
            "another manifest is requested",
        ),
        (
            world(controller(2), {"n1": pod(manifest=NEWER, healthy=False), "n2": BARE}),
            "intents were lost or changed; another manifest is requested",
        ),
    ],
)
def test_every_part_of_a_plan_has_its_reason(shot: Snapshot, reason: str) -> None:
    assert not decide(shot).empty
    assert decide(shot).why == reason


def test_many_nodes_are_not_all_named() -> None:
    fields: dict[str, Any] = {"max_unavailable": 8, "offer": offered("moves", [f"m{n}" for n in range(6)])}
    offer = fields.pop("offer")
    shot = world(controller(6, **fields), {f"n{n}": LOST for n in range(6)}, offer=offer)
    assert decide(shot).why == "lost: n0, n1, n2 and 3 more"


def test_a_step_of_a_move_tells_its_own() -> None:
    shot = world(controller(1), {"n1": pod(retained=False)}, offer=offered("transfer", ["n9"]))
    assert decide(shot).step is not None
    assert decide(shot).why == ""
