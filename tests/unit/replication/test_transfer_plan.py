"""Moves of pods, make before break: p2's two tables (its last version and its seed), then our own rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.pods.state import PodState
from farmd.replication import healing
from farmd.replication.facts import Snapshot
from farmd.replication.plan import decide, status
from tests.plans import said
from tests.rc_worlds import NEWER, NOW, POD, controller, moving, nodes, offered, pod, world

OUT = {"retained": False}


def wanted(shot: Snapshot) -> tuple[str, str] | None:
    """What is asked for, and for whom: (purpose, node)."""
    need = healing.need(shot)
    return None if need is None else (need.purpose, need.places[0][0] if need.places else "")


# -- whether a move begins ---------------------------------------------------------------------
THREE = {"n1": pod(**OUT), "n2": pod(), "n3": pod()}
SICK_OUT = {"n1": pod(healthy=False, **OUT), "n2": pod(healthy=False), "n3": pod()}
DRAINED = {"n1": pod(draining="gentle", **OUT), "n2": pod(), "n3": pod()}
SYSTEM = {"n1": pod(draining="gentle"), "n2": pod(), "n3": pod()}
BAD = pod(healthy=False, since=NOW - 5)
OTHER_SICK = {"n1": pod(**OUT), "n2": BAD, "n3": pod()}


@pytest.mark.parametrize(
    ("case", "rc", "pods", "fields", "moves"),
    [
        ("NodeTransferNoopIfStaticStrategy (W17)", {"strategy": "static"}, THREE, {}, None),
        ("NodeTransferWhenAllPodsHealthy", {}, THREE, {}, "n1"),
        ("NodeTransferNoopIfPodsUnhealthy", {}, OTHER_SICK, {}, None),
        ("… unless max_unavailable allows it", {"max_unavailable": 2}, OTHER_SICK, {}, "n1"),
        ("NodeTransferWhenIneligibleNodeUnhealthy: costs nothing", {}, SICK_OUT, {}, "n1"),
        (
            "NoOpIfNodeTransferInProgress",
            {},
            THREE | {"n9": pod(healthy=False)},
            {"transfer": moving()},
            None,
        ),
        ("every pod stands well", {}, {"n1": pod(), "n2": pod(), "n3": pod()}, {}, None),
        ("disabled starts nothing", {"disabled": True}, THREE, {}, None),
        (
            "R14: a rollout's membership is the rollout's",
            {"managed_by": "rollouts/1", "taken": True},
            THREE,
            {},
            None,
        ),
        ("R18: frozen", {}, THREE, {"frozen": "doubt"}, None),
        ("R18: frozen, whatever was commanded", {}, THREE, {"frozen": "doubt", "commanded": True}, None),
        ("the last one failed", {}, THREE, {"not_before": NOW + 1}, None),
        ("the wait is over", {}, THREE, {"not_before": NOW}, "n1"),
        ("a drain moves a static RC's pods too", {"strategy": "static"}, DRAINED, {}, "n1"),
        ("system pods wait for their stage", {"strategy": "static"}, SYSTEM, {}, None),
        ("a drain keeps the health floor", {}, DRAINED | {"n2": BAD}, {}, None),
        ("too many: removal will take it", {"replicas_desired": 2}, THREE, {}, None),
    ],
)
def test_a_move_begins_only_where_it_should(
    case: str, rc: dict[str, Any], pods: dict[str, PodState], fields: dict[str, Any], moves: str | None
) -> None:
    shot = world(controller(**({"replicas": 3} | _count(rc))), pods, **fields)
    assert wanted(shot) == (None if moves is None else ("transfer", moves)), case


def _count(rc: dict[str, Any]) -> dict[str, Any]:
    fields = dict(rc)
    if "replicas_desired" in fields:
        fields["replicas"] = fields.pop("replicas_desired")
    return fields


def test_missing_pods_come_before_moves() -> None:
    shot = world(controller(4), THREE)
    assert wanted(shot) == ("additions", "")


def test_allocate_on_ineligible_if_dynamic_strategy() -> None:
    """Seven pods, one node went bad: the move starts with a place, and touches no pod yet."""
    pods = {f"node{number}": pod(retained=number != 3) for number in range(1, 8)}
    plan = decide(world(controller(7), pods, offer=offered("transfer", ["node9"])))
    assert plan.step is not None
    assert (plan.step.action, plan.step.old, plan.step.new) == ("start", ("node3", POD), ("node9", POD))
    assert plan.removals == plan.additions == ()


def test_alert_if_cannot_allocate_nodes() -> None:
    """No place: blocked with the reason (the reporter alerts), and nothing is given up."""
    plan = decide(world(controller(3), THREE, offer=offered("transfer", [], missing=1)))
    assert plan.empty
    assert "n1/web should move (ineligible): 1 pods found no place" in said(plan)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"locked": "rollouts/77"}, "locked by rollouts/77"),
        ({"crowded": True}, "as many moves as allowed"),
        ({"not_before": NOW + 60}, "the last move failed"),
    ],
)
def test_what_is_put_off_has_a_reason(fields: dict[str, Any], reason: str) -> None:
    plan = decide(world(controller(3), THREE, **fields))
    assert plan.empty
    assert reason in said(plan)


# -- the steps ---------------------------------------------------------------------------------
ON = {"n1": pod(**OUT), "n2": pod(), "n3": pod()}
RESERVED = {"phase": "reserved"}
OLDER = {"cause": "preempted"}


@pytest.mark.parametrize(
    ("case", "pods", "move", "fields", "action"),
    [
        ("a place is reserved: place", ON, RESERVED, {}, "place"),
        ("the new pod is not healthy yet", ON | {"n9": pod(healthy=False)}, {}, {}, None),
        ("TransferNodeHappyPath", ON | {"n9": pod()}, {}, {}, "finish"),
        ("R22: healthy, but an earlier start", ON | {"n9": pod(intent=9, acted=8)}, {}, {}, None),
        ("updated since: healthy as it is", ON | {"n9": pod(manifest=NEWER)}, {}, {}, "finish"),
        ("healthy at the last moment", ON | {"n9": pod()}, {"deadline": NOW}, {}, "finish"),
        ("W16: never healthy", ON | {"n9": pod(healthy=False)}, {"deadline": NOW}, {}, "rollback"),
        ("never placed", ON, RESERVED | {"deadline": NOW}, {}, "rollback"),
        ("its place was taken", ON, RESERVED, {"taken": "ffff"}, "rollback"),
        ("another hand removed the new pod", ON, {}, {}, "rollback"),
        ("the new node is lost", ON | {"n9": pod(lost=NOW)}, {}, {}, "rollback"),
        ("the new node became ineligible", ON | {"n9": pod(healthy=False, **OUT)}, {}, {}, "rollback"),
        ("another hand removed the old pod", {"n2": pod(), "n9": pod(healthy=False)}, {}, {}, "finish"),
        ("… before the new one stood", {"n2": pod(), "n3": pod()}, RESERVED, {}, "cancel"),
        ("the old node is lost", ON | {"n1": pod(lost=NOW, **OUT), "n9": BAD}, {}, {}, "finish"),
        ("eligible again", ON | {"n1": pod(), "n9": pod(healthy=False)}, {}, {}, "cancel"),
        ("eligible again, but the new one is healthy", ON | {"n1": pod(), "n9": pod()}, {}, {}, "finish"),
        ("eligible again before placing", ON | {"n1": pod()}, RESERVED, {}, "cancel"),
        ("healthy again before placing", ON | {"n1": pod()}, RESERVED | {"cause": "unhealthy"}, {}, "cancel"),
        ("an older version made room for others", ON | {"n1": pod()}, RESERVED | OLDER, {}, "cancel"),
        ("… and had placed the new pod", ON | {"n1": pod(), "n9": BAD}, OLDER, {}, "cancel"),
        ("… from a node that may not keep its pod", ON, RESERVED | OLDER, {}, "place"),
        ("W17: healthy for a moment", ON | {"n9": pod(healthy=False)}, {"cause": "unhealthy"}, {}, None),
        ("R18: frozen waits", ON | {"n9": pod()}, {}, {"frozen": "doubt"}, None),
        ("R18: frozen, past the deadline", ON | {"n9": BAD}, {"deadline": NOW}, {"frozen": "x"}, None),
        ("the mutation lock is held: waits", ON | {"n9": pod()}, {}, {"locked": "rollouts/1"}, None),
    ],
)  # fmt: skip
def test_w16_make_before_break(
    case: str, pods: dict[str, PodState], move: dict[str, Any], fields: dict[str, Any], action: str | None
) -> None:
    step = healing.advance(world(controller(3), pods, transfer=moving(**move), **fields))
    assert (None if step is None else step.action) == action, case


def test_a_move_pauses_while_it_is_nobodys_business() -> None:
    """TransferNotRolledBackOnRCDisabled: what stands keeps standing, and goes on when it is enabled again."""
    plan = decide(world(controller(3, disabled=True), ON | {"n9": pod()}, transfer=moving(deadline=NOW)))
    assert plan.step is None
    assert plan.removals == ()


@pytest.mark.parametrize(
    ("pods", "move", "action"),
    [
        (ON, {"phase": "reserved"}, "cancel"),
        (ON | {"n9": pod(healthy=False)}, {}, "cancel"),
        (ON | {"n9": pod()}, {}, "finish"),
    ],
)
@pytest.mark.parametrize("locked", ["", "rollouts/1"])
def test_r14_a_move_that_a_rollout_finds_under_way_is_ended_at_once(
    pods: dict[str, PodState], move: dict[str, Any], action: str, locked: str
) -> None:
    """Whoever began it ends it, whatever the rollout has locked; nothing else happens in that plan."""
    rc = controller(3, managed_by="rollouts/1", taken=True)
    plan = decide(world(rc, pods, transfer=moving(**move), locked=locked))
    assert plan.step is not None
    assert plan.step.action == action
    assert (*plan.additions, *plan.removals, *plan.moves, *plan.replacements) == ()


def test_r14_a_move_that_a_rollout_finds_while_frozen_is_ended_after_the_thaw() -> None:
    rc = controller(3, managed_by="rollouts/1", taken=True)
    plan = decide(world(rc, ON | {"n9": pod()}, transfer=moving(), frozen="doubt"))
    assert plan.step is None
    assert said(plan) == "frozen: doubt"


# -- with other changes ------------------------------------------------------------------------
STANDING = ON | {"n9": pod(healthy=False)}


def test_one_pod_too_many_is_tolerated_while_a_move_stands() -> None:
    plan = decide(world(controller(3), STANDING, transfer=moving()))
    assert plan.empty
    assert "moving web from n1 to n9" in plan.waiting
    said = status(world(controller(3), STANDING, transfer=moving()), plan, "f", 0.0)
    assert (said.state, said.placed) == ("progressing", 4)


def test_transfer_rolled_back_on_replicas_desired_decrease() -> None:
    """The new pod goes and the move ends; the next cycle removes the old one, which nothing retains."""
    shot = world(controller(2), STANDING, transfer=moving())
    step = decide(shot).step
    assert step is not None
    assert (step.action, step.new) == ("cancel", ("n9", POD))
    after = decide(world(controller(2), ON))
    assert nodes(after.removals) == ["n1"]


def test_a_lowered_count_ends_a_move_even_in_a_freeze() -> None:
    fields = {"frozen": "doubt", "transfer": moving()}
    assert healing.advance(world(controller(2), STANDING, **fields)) is None
    step = healing.advance(world(controller(2), STANDING, commanded=True, **fields))
    assert step is not None
    assert step.action == "cancel"


@pytest.mark.parametrize("place", ["n1", "n9"])
def test_remove_pods_doesnt_remove_old_or_new_node_in_node_transfer(place: str) -> None:
    """Ordinary removal never takes either of the pair, whatever the count (it waits in a freeze here)."""
    shot = world(controller(0), STANDING, transfer=moving(), locked="rollouts/1")
    assert place not in nodes(decide(shot).removals)


def test_new_transfer_node_cannot_be_scheduled_on_replicas_desired_increase() -> None:
    """While a place is only reserved nothing else is placed; then the new pod makes the node full."""
    shot = world(controller(5), ON, transfer=moving(phase="reserved"))
    assert healing.need(shot) is None
    assert decide(shot).step is not None
    need = healing.need(world(controller(5), STANDING, transfer=moving()))
    assert need is not None
    assert (need.purpose, need.count) == ("additions", 2)


def test_an_update_replaces_the_new_pod_and_spares_the_old() -> None:
    """What leaves anyway is not replaced first."""
    pods = {
        name: pod(manifest=NEWER, healthy=name != "n9", **(OUT if name == "n1" else {})) for name in STANDING
    }
    plan = decide(world(controller(3), pods, transfer=moving()))
    assert nodes(plan.replacements) == ["n9"]


def test_repairs_go_on_during_a_move() -> None:
    lost = PodState(STANDING["n2"].pod, None, None)
    plan = decide(world(controller(3), STANDING | {"n2": lost}, transfer=moving()))
    assert nodes(plan.repairs) == ["n2"]


def test_an_intent_that_is_not_there_yet_is_no_arrival() -> None:
    bare = PodState(STANDING["n2"].pod, None, pod().reality)
    assert not bare.available


@pytest.mark.parametrize(("failures", "seconds"), [(1, 60), (2, 120), (3, 240), (20, 3600), (5000, 3600)])
def test_failed_moves_are_tried_again_ever_later(failures: int, seconds: float) -> None:
    assert healing.backoff(failures) == seconds


def test_only_a_deadline_is_a_timer() -> None:
    assert decide(world(controller(3), STANDING, transfer=moving())).after == 290
    assert decide(world(controller(3), {name: pod() for name in ON})).after is None


def test_a_frozen_move_past_its_deadline_waits_for_the_thaw_and_not_in_a_circle() -> None:
    plan = decide(world(controller(3), STANDING, transfer=moving(deadline=NOW - 1), frozen="doubt"))
    assert (plan.empty, plan.after, said(plan)) == (True, None, "frozen: doubt")


# -- whatever the world looks like -------------------------------------------------------------
@st.composite
def moves(draw: st.DrawFn) -> Snapshot:
    names = ["n1", "n2", "n3", "n9"]
    pods = {
        name: pod(
            healthy=draw(st.booleans()),
            retained=draw(st.booleans()),
            acted=draw(st.sampled_from([4, 5])),
            lost=draw(st.sampled_from([None, None, NOW - 500])),
            draining=draw(st.sampled_from(["", "gentle", "forced"])),
            at=draw(st.sampled_from([0.0, NOW - 5])),
            settles_in=draw(st.sampled_from([0.0, 0.0, 5.0])),
        )
        for name in draw(st.sets(st.sampled_from(names)))
    }
    rc = controller(
        draw(st.integers(0, 5)),
        disabled=draw(st.booleans()),
        taken=draw(st.sampled_from([False, False, True])),
        strategy=draw(st.sampled_from(["static", "dynamic"])),
        on_lost=draw(st.sampled_from(["replace", "wait"])),
    )
    move = draw(st.none() | st.builds(moving, phase=st.sampled_from(["reserved", "placed"]),
                                      deadline=st.sampled_from([NOW - 1, NOW + 1])))  # fmt: skip
    shot = world(
        rc,
        pods,
        transfer=move,
        frozen=draw(st.sampled_from([None, None, "doubt"])),
        commanded=draw(st.booleans()),
        locked=draw(st.sampled_from(["", "", "rollouts/1"])),
        taken=draw(st.sampled_from(["", "", "ffff"])),
    )
    need = healing.need(shot)
    if need is None or (need.purpose == "transfer" and shot.locked):
        return shot  # the reader asks for no place either
    free = [f"m{number}" for number in range(need.count)][: draw(st.integers(0, need.count))]
    offer = offered(need.purpose, free, missing=need.count - len(free))
    return world(rc, pods, transfer=move, frozen=shot.frozen, commanded=shot.commanded, locked=shot.locked,
                 taken=shot.taken, offer=offer)  # fmt: skip


@given(moves())
def test_w16_no_step_ever_takes_a_healthy_pod_before_its_successor_is(shot: Snapshot) -> None:
    plan, move = decide(shot), shot.transfer
    step = plan.step
    if step is None:
        return
    assert (*plan.additions, *plan.removals, *plan.moves, *plan.replacements) == ()
    assert not shot.rc.disabled
    if shot.rc.taken:
        assert step.action in ("finish", "rollback", "cancel")
    else:
        assert not shot.locked
    if step.action == "start":
        assert move is None
        assert step.new not in shot.pods
    else:
        assert move is not None
        assert (step.old, step.new) == (move.old, move.new)
    if step.action == "finish" and step.old in shot.pods and shot.pods[step.old].healthy:
        assert shot.pods[step.new].available


@given(moves())
def test_ordinary_changes_leave_the_pair_of_a_move_alone(shot: Snapshot) -> None:
    plan = decide(shot)
    pair = healing.moving(shot)
    assert not pair & {*plan.removals, *(place for place, _ in plan.moves)}
    if shot.frozen is not None:
        assert not plan.moves
        assert plan.step is None or plan.step.action == "cancel"
