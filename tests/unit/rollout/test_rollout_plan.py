"""What a rollout does next: phases, faults, people's words, and whole runs to the end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farmd.rollout.facts import Plan, Side
from store.rollouts import RolloutState
from tests.effort import tries
from tests.rollout_worlds import NEW, NOW, OLD, POD, World, controller, on, pod, rollout


def moving(**fields: Any) -> RolloutState:
    return RolloutState(**({"phase": "moving", "since": NOW} | fields))


def run(world: World, steps: int = 400, healthy: bool = True) -> list[tuple[int, int]]:
    """Until it ends or does nothing more; both counts after each step that changed them."""
    seen = [(len(world.old), len(world.new))]
    for _ in range(steps):
        plan = world.step()
        counts = (world.counts.get(OLD, len(world.old)), world.counts.get(NEW, len(world.new)))
        if counts != seen[-1]:
            seen.append(counts)
        if world.outcome:
            return seen
        if plan.turn is None and not plan.moves.moves:
            if all(state.reality is not None for pods in (world.old, world.new) for state in pods.values()):
                return seen
            world.settle(healthy)
    return seen


def test_p2s_loop_takes_one_after_the_other() -> None:
    world = World(rollout(3, 2), on(3))
    assert run(world) == [(3, 0), (2, 1), (1, 2), (0, 3)]
    assert world.outcome == "done"


def test_p2s_loop_from_zero_adds_one_after_the_other() -> None:
    world = World(rollout(3, 2, began=0), {}, free=["n1", "n2", "n3"])
    assert run(world) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_first_pod_that_fails_stops_it_there() -> None:
    world = World(rollout(3, 2), on(3))
    assert run(world, healthy=False)[-1] == (2, 1)
    assert world.decide().waiting.endswith("nothing may leave until n000/web is available")


def test_by_default_one_pod_goes_first() -> None:
    world = World(rollout(10, 5, policy={"stages": []}), on(10))
    assert run(world) == [(10, 0), (9, 1), (4, 6), (0, 10)]
    assert world.outcome == "done"


def test_stages_are_gone_through_with_rests_and_words() -> None:
    stages = [{"to": 2, "bake": 30.0}, {"to": "50%"}, {"to": "100%", "approve": True}]
    policy = msgspec.convert({"minimum": 8, "stages": stages}, dict)
    world = World(msgspec.convert(rollout_with(policy), type(rollout(10, 8))), on(10))
    run(world)
    assert (len(world.old), len(world.new), world.state.phase) == (8, 2, "baking")  # type: ignore[union-attr]
    world.now += 31
    run(world)
    assert (len(world.old), len(world.new)) == (5, 5)
    assert world.decide().blocked.code == "unapproved"  # type: ignore[union-attr]
    world.rollout = msgspec.structs.replace(world.rollout, approved=3)
    run(world)
    assert world.outcome == "done"


def rollout_with(policy: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(rollout(10, 8))
    return plain | {"policy": policy}


def test_fewer_in_the_end_leaves_the_surplus_within_the_floor() -> None:
    world = World(rollout(3, 2, began=6), on(6))
    assert run(world)[-1] == (0, 3)
    assert world.outcome == "done"


def test_more_in_the_end_grows_on_free_nodes() -> None:
    world = World(
        rollout(12, 9, began=6, policy={"stages": [2, "100%"]}), on(6), free=[f"f{n}" for n in range(9)]
    )
    run(world)
    assert world.outcome == "done"
    assert len(world.new) == 12


# -- who leaves first ---------------------------------------------------------------------------
def first(world: World) -> tuple[str, ...]:
    world.state = moving()
    return tuple(move.source[0] if move.source else "-" for move in world.decide().moves.moves)


def test_w14_pods_that_serve_nobody_leave_first_and_cost_nothing() -> None:
    pods = on(6)
    pods["n004", POD] = pod(healthy=False)
    world = World(rollout(6, 5), pods)
    assert first(world) == ("n004",)  # five serve, which is the floor: nobody else may leave


def test_a_pod_of_which_nobody_knows_leaves_last() -> None:
    pods = on(3)
    pods["n000", POD] = pod(absent=True)
    assert first(World(rollout(3, 1), pods)) == ("n001",)


def test_a_drained_node_is_left_first_and_elsewhere() -> None:
    pods = on(3)
    pods["n002", POD] = pod(draining="gentle", retained=False)
    world = World(rollout(3, 2), pods, free=["f1"], unfit=frozenset({("n002", POD)}))
    world.state = moving()
    (move,) = world.decide().moves.moves
    assert (move.source, move.target.node) == (("n002", POD), "f1")  # type: ignore[union-attr]


@pytest.mark.parametrize(("minimum", "moved"), [(2, [("n000", "f1")]), (3, [])])
def test_a_new_pod_leaves_a_gently_drained_node_while_the_others_keep_the_floor(
    minimum: int, moved: list[tuple[str, str]]
) -> None:
    pods = {place: state for place, state in on(4).items() if place[0] != "n000"}
    news = {("n000", POD): pod(NEW, draining="gentle", retained=False)}
    world = World(rollout(4, minimum + 1), pods, news, free=["f1"], state=moving())
    moves = world.decide().moves.moves
    assert [(m.source[0], m.target.node) for m in moves if m.way == "refill"] == moved  # type: ignore[index, union-attr]


def test_without_room_nothing_moves_and_it_says_so() -> None:
    world = World(rollout(3, 2), on(3), unfit=frozenset(on(3)))
    world.state = moving()
    plan = world.decide()
    assert (plan.moves.moves, plan.blocked.code, plan.blocked.text) == ((), "no_room", "no room")  # type: ignore[union-attr]


@pytest.mark.parametrize("room", [[], ["f1"]])
def test_w14_a_pod_that_has_no_other_place_holds_up_none_that_may_stay(room: list[str]) -> None:
    pods = on(5)
    pods["n003", POD] = pod(draining="gentle", retained=False)
    world = World(rollout(5, 4), pods, free=list(room), unfit=frozenset({("n003", POD)}), state=moving())
    moves = [(move.source, move.target.node) for move in world.decide().moves.moves]  # type: ignore[union-attr]
    assert moves == ([(("n003", POD), "f1")] if room else [(("n000", POD), "n000")])
    run(world)
    assert (len(world.new), world.outcome) == ((5, "done") if room else (4, ""))
    assert room or "no room" in world.decide().blocked.text  # type: ignore[union-attr]


# -- what holds it, and faults -------------------------------------------------------------------
def held(**fields: Any) -> Plan:
    world = World(rollout(3, 2, **fields.pop("said", {})), on(3))
    world.state = fields.pop("state", moving())
    return world.decide(**fields)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"said": {"paused": True}}, "paused"),
        ({"locked": "user/ada@host"}, "locked"),
        ({"frozen": "no leader", "frozen_for": 31.0}, "frozen"),
        ({"old": Side(controller(OLD, 3, disabled=True), on(3))}, "disabled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_holds_it_gives_the_controllers_back(fields: dict[str, Any], code: str) -> None:
    plan = held(**fields)
    assert plan.turn is not None
    assert (plan.turn.action, plan.turn.state.phase, plan.turn.state.cause) == ("halt", "halted", code)  # type: ignore[union-attr]
    assert not plan.turn.takes
    after = held(**(fields | {"state": plan.turn.state}))
    assert (after.turn, after.blocked.code) == (None, code)  # type: ignore[union-attr]


def test_r18_a_short_freeze_is_waited_for() -> None:
    plan = held(frozen="no leader", frozen_for=5.0)
    assert plan.empty
    assert (plan.blocked.frozen, plan.after) == (True, 25.0)  # type: ignore[union-attr]


def test_what_held_it_is_over_and_it_goes_on() -> None:
    plan = held(state=moving(phase="halted", cause="paused"))
    assert (plan.turn.action, plan.turn.takes) == ("take", True)  # type: ignore[union-attr]


def late(healthy: bool | None, **said: Any) -> Plan:
    world = World(rollout(3, 2, **said), on(3))
    run(world, steps=2)
    world.settle(bool(healthy)) if healthy is not None else None
    world.now = NOW + 601
    return world.decide()


def test_a_version_that_fails_until_its_deadline_is_reverted() -> None:
    turn = late(False).turn
    assert turn is not None
    assert (turn.action, turn.state.back) == ("back", True)  # type: ignore[union-attr]
    assert "1 of 1 pods do not stay available: n000/web not healthy" in turn.reason


def test_it_may_be_left_to_people_instead() -> None:
    plan = late(False, policy={"on_failure": "pause"})
    assert (plan.turn.action, plan.turn.state.fault) == ("halt", True)  # type: ignore[union-attr]
    assert plan.fault


def test_what_nobody_knows_of_never_reverts() -> None:
    turn = late(None).turn
    assert (turn.action, turn.state.fault) == ("halt", True)  # type: ignore[union-attr]


def test_after_a_fault_it_goes_on_only_when_a_person_says_so() -> None:
    state = moving(phase="halted", cause="600 s", fault=True, resumed=1)
    assert held(state=state, said={"resumed": 1}).blocked.code == "failed"  # type: ignore[union-attr]
    assert held(state=state, said={"resumed": 2}).turn.action == "take"  # type: ignore[union-attr]


def test_a_revert_takes_everything_back() -> None:
    world = World(rollout(10, 9), on(10))
    run(world, steps=9)
    assert len(world.new) > 2
    world.rollout = msgspec.structs.replace(world.rollout, wish="revert")
    run(world)
    assert (world.outcome, len(world.old), len(world.new)) == ("reverted", 10, 0)


def test_an_abort_ends_it_where_it_is() -> None:
    plan = held(said={"wish": "abort"})
    assert (plan.turn.action, plan.turn.outcome) == ("end", "aborted")  # type: ignore[union-attr]


def test_a_controller_that_is_gone_ends_it() -> None:
    assert held(new=None).turn.outcome == "aborted"  # type: ignore[union-attr]


def test_nothing_moves_before_a_move_that_was_under_way_has_ended() -> None:
    assert held(busy="waiting until a move of n1/web is ended").empty


# -- whole runs ---------------------------------------------------------------------------------
@st.composite
def worlds(draw: st.DrawFn) -> World:
    began, total = draw(st.integers(0, 12)), draw(st.integers(1, 12))
    minimum = draw(st.integers(0, total - 1))
    stages = sorted({draw(st.integers(1, total)) for _ in range(draw(st.integers(0, 2)))} - {total})
    pods = on(began)
    for place in pods:
        kind = draw(st.sampled_from(["good", "good", "good", "sick", "absent"]))
        if kind != "good":
            pods[place] = pod(healthy=kind != "sick", absent=kind == "absent")
    policy = {"stages": [*stages, "100%"], "progress_deadline": 60.0}
    return World(rollout(total, minimum, began=began, policy=policy), pods, free=[f"f{n}" for n in range(14)])


@settings(max_examples=tries(300))
@given(worlds(), st.data())
def test_whole_runs_keep_the_floor_and_end_once(world: World, data: st.DataObject) -> None:
    """P1 to P4, P7 to P9: with flaps, a word to revert at any moment, and pods that nobody knows of."""
    total, began = world.rollout.replicas, world.rollout.started_from
    stage, back, said = 0, False, False
    for step in range(300):
        before, serving = world.available(), {p for p, s in {**world.old, **world.new}.items() if not s.down}
        floor = world.rollout.policy.minimum
        assert isinstance(floor, int)
        plan = world.step()
        if world.state is not None and world.state.back:
            floor = min(floor, began - 1)
        gone = serving - set(world.old) - set(world.new)
        taken = {move.source for move in plan.moves.moves if move.source is not None}
        assert len((gone | taken) & serving) <= max(0, before - floor), plan
        od, nd = world.counts.get(OLD, len(world.old)), world.counts.get(NEW, len(world.new))
        assert od + nd <= max(total, began)
        assert 0 <= nd <= total
        assert 0 <= od <= began
        assert (od, nd) == (len(world.old), len(world.new))
        if world.outcome:
            break
        state = world.state
        assert state is not None
        assert state.back >= back
        assert state.stage >= stage
        stage, back = state.stage, state.back
        if plan.turn is None and not plan.moves.moves:
            assert plan.waiting or plan.blocked, plan
            world.settle(data.draw(st.booleans()) if step < 40 else True)
            world.old = {p: pod(OLD) for p in world.old}
            if step >= 40:
                world.new = {p: pod(NEW) for p in world.new}
            if not said and data.draw(st.integers(0, 9)) == 0:
                said = True
                world.rollout = msgspec.structs.replace(world.rollout, wish="revert")
    assert world.outcome in ("done", "reverted")
    assert (world.outcome == "reverted") == back
