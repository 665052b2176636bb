"""The soak notices a rollout that breaks its floor or ends twice, and nothing that is right."""

from __future__ import annotations

import pytest

from store.audit import Audit
from store.policies import Policy
from store.rcs import ReplicationController
from store.rollouts import Rollout
from tests.soak.rollouts import RolloutFloors, twice_over, unended
from tests.unit.tests_own.test_soak_rules import KEYS, NEW, OLD, PLACES, RC, World

ID, SIDE = "5d01c2", "1f"
ROLLOUT = Rollout(
    id=ID,
    name="web",
    old="0f",
    new=SIDE,
    from_manifest=OLD,
    to_manifest=NEW,
    replicas=3,
    started_from=3,
    started_to=0,
    policy=Policy(minimum=2),
)


def rolling() -> World:
    """Three pods that serve, and a rollout that may have one down."""
    world = World()
    world.put(KEYS.record("rollouts", ID), ROLLOUT, 3)
    side = ReplicationController(
        **(RC | {"id": SIDE, "name": "web-5d01c2", "manifest": NEW}), replicas_desired=0, min_healthy_time=5.0
    )
    world.put(KEYS.record("rcs", SIDE), side, 3)
    return world


def moved(world: World, floors: RolloutFloors, at: float, index: int, *places: tuple[str, str]) -> list[str]:
    """What is told of a transaction that takes these pods over in place."""
    before = world.look(at - 0.5)
    for place in places:
        world.entries.pop(KEYS.pod("0f", *place))
        world.pod(place, NEW, index, owner=SIDE)
    audit = Audit(
        at=at,
        actor="farm/f1",
        action="rollout.move",
        kind="rollouts",
        id=ID,
        before={"pods": 3},
        after={"pods": 3},
        placed=[f"{SIDE}/{node}/{name}" for node, name in places],
        removed=[f"0f/{node}/{name}" for node, name in places],
    )
    return list(floors.judge(index, audit, before, world.look(at + 0.5)))


def test_r22_two_pods_at_once_are_noticed_where_one_may_be_down() -> None:
    assert len(moved(rolling(), RolloutFloors(), 200.0, 20, *PLACES[:2])) == 1


@pytest.mark.parametrize(("since", "found"), [(None, 1), (199.0, 1), (190.0, 0)])
def test_r22_the_next_pod_waits_until_the_last_one_is_available(since: float | None, found: int) -> None:
    world, floors = rolling(), RolloutFloors()
    assert moved(world, floors, 180.0, 20, PLACES[0]) == []
    if since is not None:
        world.real(PLACES[0], NEW, 20, since=since)
    assert len(moved(world, floors, 200.0, 30, PLACES[1])) == found


def test_pods_that_did_not_serve_may_leave_at_once() -> None:
    world = rolling()
    for place in PLACES[:2]:
        world.real(place, OLD, 10, since=100.0, health="critical")
    assert moved(world, RolloutFloors(), 200.0, 20, *PLACES[:2]) == []


@pytest.mark.parametrize(
    ("actions", "gone", "twice", "left"),
    [
        (["create"], False, 0, 1),
        (["create"], True, 0, 1),
        (["create", "done"], True, 0, 0),
        (["create", "done"], False, 1, 1),
        (["create", "done", "reverted"], True, 1, 0),
    ],
)
def test_each_rollout_ends_once(actions: list[str], gone: bool, twice: int, left: int) -> None:
    world = rolling()
    if gone:
        world.entries.pop(KEYS.record("rollouts", ID))
    for number, action in enumerate(actions):
        audit = Audit(at=1.0, actor="farm/f1", action=f"rollout.{action}", kind="rollouts", id=ID)
        world.put(KEYS.audit("2026-11-22T08", f"{number}"), audit, 30 + number)
    dump = world.look(1.0).dump
    assert (len(list(twice_over(dump))), len(list(unended(dump)))) == (twice, left)
