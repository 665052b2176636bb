"""Rollouts of a whole fleet on virtual time: what holds them, who takes over, and what hands spoil."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from farmd.housekeeping.facts import DEFAULTS
from farmd.nodes import commands as node_commands
from farmd.replication.commands import RC
from farmd.rollout import commands
from store.rollouts import KIND, Rollout
from tests.effort import first
from tests.stateful.falling import FATES, Fall
from tests.stateful.fleet import KEYS
from tests.stateful.rolling import Rolling, worker
from tests.stateful.scene import Scene


@pytest.fixture
def rolling(scene: Scene) -> Rolling:
    return Rolling(scene)


def test_it_comes_to_its_end(rolling: Rolling) -> None:
    rolling.begin()
    rolling.whole("done")


def test_r15_it_goes_on_where_a_cycle_takes_longer_than_what_was_read_counts_as_fresh(
    rolling: Rolling,
) -> None:
    """Consul is slow: how pods are was read for this very cycle, and is not read again and again."""
    for name in ("ash", "birch"):
        rolling.scene.farms[name].line.slow_reads = "/rcs/", 3.0
    rolling.begin(progress_deadline=120)
    rolling.whole("done")


def test_r21_an_agent_that_is_away_for_a_moment_in_a_long_rest_is_no_fault(rolling: Rolling) -> None:
    """The deadline of the stage was over long ago; the time without progress begins now."""
    rollout = rolling.begin(stages=[{"to": 1, "bake": 300}, "100%"])
    rolling.until(lambda: rolling.state and rolling.state.phase == "baking")
    rolling.scene.advance(100.0)
    ((node, _),) = rolling.scene.places(rollout.new)
    agent = rolling.scene.agents[node]
    rolling.scene.run(agent.die(at_once=True))
    rolling.scene.advance(2.0)
    rolling.scene.run(agent.start())
    rolling.scene.advance(20.0)
    assert rolling.state.phase == "baking"  # type: ignore[union-attr]
    rolling.until(lambda: rolling.ended, 400.0, 5.0)
    rolling.whole("done")


def test_r20_a_wiped_tree_of_controllers_ends_no_rollout(rolling: Rolling) -> None:
    rollout = rolling.begin(stages=[{"to": 1}, {"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).reason.endswith("approve web"))
    prefix = KEYS.tree("rcs")
    kept = rolling.scene.under(prefix)
    rolling.scene.run(rolling.scene.hand.delete(prefix, recurse=True))
    rolling.ask(lambda: commands.approve(rolling.scene.call, "web", everything=True))
    rolling.scene.advance(20.0)
    assert rolling.rollout is not None
    for key in sorted(kept, reverse=True):
        rolling.scene.put(key, kept[key].value)
    rolling.whole("done")


@pytest.mark.parametrize("what", ["rollouts", "work", "old", "new"])
def test_r10_a_record_that_nobody_can_read_blocks_it_with_a_reason(rolling: Rolling, what: str) -> None:
    rollout = rolling.begin()
    rolling.until(lambda: rolling.state and rolling.state.phase == "moving")
    key = {
        "rollouts": KEYS.record(KIND, rollout.id),
        "work": KEYS.work(KIND, rollout.id),
        "old": KEYS.record("rcs", rollout.old),
        "new": KEYS.record("rcs", rollout.new),
    }[what]
    rolling.scene.corrupt(key, b"{")
    rolling.scene.advance(8.0)
    before = sorted(rolling.scene.sight.pods)
    rolling.scene.advance(30.0)
    assert sorted(rolling.scene.sight.pods) == before
    said = rolling.said(rollout.id)
    assert (said.state, key in said.reason) == ("blocked", True), said
    rolling.scene.mend(key)
    rolling.whole("done")


@pytest.mark.parametrize("count", [8, 3])
def test_a_scale_of_a_held_canary_survives_the_farm_that_carries_it_out(rolling: Rolling, count: int) -> None:
    rollout = rolling.begin(stages=[{"to": 1}, {"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).asks)
    assert rolling.ask(lambda: commands.scale(rolling.scene.call, "web", count)) is not None
    rolling.scene.run(rolling.scene.farms[worker(rolling)].kill())
    both = [count - 1, 1]
    rolling.until(lambda: [len(rolling.scene.places(rc)) for rc in (rollout.old, rollout.new)] == both)
    rolling.until(lambda: rolling.said(rollout.id).asks)
    assert rolling.ask(lambda: commands.approve(rolling.scene.call, "web")) is not None
    rolling.fields["replicas"] = count
    rolling.whole("done")


# -- farms that die, stop and hand over ---------------------------------------------------------
@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
@pytest.mark.parametrize("fate", first(1, FATES))
def test_r12_a_worker_that_falls_away_after_any_transaction_changes_nothing_about_the_end(
    fate: str, back: bool
) -> None:
    k = 0
    while fallen(fate, back, k):
        k += 1
    assert k > 3


def fallen(fate: str, back: bool, k: int) -> bool:
    """One case; False if the rollout ended before its k-th transaction."""
    made = Scene(DEFAULTS)
    try:
        rolling = Rolling(made)
        if back:
            rolling.begin(stages=["50%", {"to": "100%", "approve": True}])
            rolling.until(lambda: rolling.state and rolling.state.phase == "baking")
            assert rolling.ask(lambda: commands.revert(made.call, "web"))
        else:
            rolling.begin()
        fall = Fall(made, KIND, fate, k)
        rolling.until(lambda: rolling.ended or fall(), step=0.02)
        rolling.whole("reverted" if back else "done")
    except AssertionError as error:
        raise AssertionError(f"{fate}, k={k}: {error}") from error
    finally:
        made.close()
    return fall.came


def test_r15_before_serving_pods_leave_it_is_read_how_all_pods_are(rolling: Rolling) -> None:
    """Two of six pods fell ill a moment ago, and only four must serve: these are not taken down."""
    rollout = rolling.begin(stages=[{"to": "100%", "approve": True}])
    rolling.until(lambda: rolling.said(rollout.id).reason.endswith("approve web"))
    rolling.scene.advance(10.0)
    rolling.scene.farms[worker(rolling)].line.slow_reads = "reality", 6.0
    rolling.scene.advance(60.0)  # the query that is parked now is a slow one
    ill = rolling.scene.places(rolling.old)[-2:]
    for node, instance in ill:
        rolling.scene.agents[node].ail(instance, sick=True)
    rolling.scene.advance(0.2)
    rolling.ask(lambda: commands.approve(rolling.scene.call, "web", everything=True))
    rolling.until(lambda: rolling.scene.audits("rollout.move"), 30.0)
    moved = [a.removed for _, a in rolling.scene.sight.dump.audits if a.action == "rollout.move"]
    assert {tuple(pod.split("/")[1:]) for pod in moved[0]} <= set(ill)


# -- what happens to a rollout that moves -------------------------------------------------------
def slowly(rolling: Rolling) -> Rollout:
    """A rollout whose first new pod takes its time."""
    for agent in rolling.scene.agents.values():
        agent.delay = 6.0
    rollout = rolling.begin(stages=["100%"])
    rolling.until(lambda: rolling.scene.places(rollout.new))
    return rollout


def forced(rolling: Rolling) -> Any:
    return dataclasses.replace(rolling.scene.call, force=True, reason="it must be")


def test_r13_a_controller_that_is_disabled_by_force_halts_it_until_it_is_enabled(rolling: Rolling) -> None:
    rollout = slowly(rolling)
    assert rolling.ask(lambda: RC.disable(forced(rolling), "web"))
    rolling.until(lambda: rolling.state and rolling.state.phase == "halted", 10.0)
    rolling.until(lambda: "disabled" in rolling.said(rollout.id).reason, 10.0)
    assert rolling.ask(lambda: RC.enable(rolling.scene.call, "web"))
    rolling.whole("done")


def test_r13_a_mutation_lock_that_is_broken_by_hand_is_taken_again(rolling: Rolling) -> None:
    rollout = slowly(rolling)
    rolling.scene.delete(KEYS.mutation_lock("rcs", rollout.old))
    rolling.whole("done")
    assert rolling.scene.audits("rollout.lock") == 1


def test_r14_a_drained_and_a_lost_node_leave_it_in_the_middle(rolling: Rolling) -> None:
    slowly(rolling)
    drained, lost = (node for node, _ in rolling.scene.places(rolling.old)[-2:])
    assert rolling.ask(lambda: node_commands.drain(forced(rolling), drained, 5.0))
    rolling.scene.run(rolling.scene.agents[lost].die(at_once=True))
    rolling.whole("done")
    assert not {drained, lost} & {node for _, node, _ in rolling.scene.sight.pods}


def test_r14_intents_that_were_lost_are_repaired_by_it(rolling: Rolling) -> None:
    slowly(rolling)
    place = rolling.scene.places(rolling.old)[-1]
    rolling.scene.witness.tampered.add(place)
    rolling.scene.delete(KEYS.intent(*place))
    rolling.whole("done")


def test_r18_a_freeze_of_the_controllers_holds_it_and_its_end_wakes_it(rolling: Rolling) -> None:
    slowly(rolling)
    key = KEYS.failsafe("rcs")
    rolling.scene.put(key, b"{")  # nobody but a person ends this freeze
    rolling.scene.advance(2.0)
    moves = rolling.scene.audits("rollout.move")
    rolling.scene.advance(45.0)
    assert rolling.scene.audits("rollout.move") == moves
    assert rolling.state.phase == "halted"  # type: ignore[union-attr]
    rolling.scene.delete(key)
    rolling.whole("done")


def test_r18_a_version_that_fails_is_reverted_although_freezes_come_again_and_again(rolling: Rolling) -> None:
    """The deadline is 60 s; between two freezes there are 10 s."""
    rollout = rolling.begin(stages=["100%"])
    rolling.until(lambda: rolling.scene.audits("rollout.move"), step=0.02)
    for _ in range(10):
        for node, instance in rolling.scene.places(rollout.new):
            rolling.scene.agents[node].ail(instance, sick=True)
        rolling.scene.put(KEYS.failsafe("rcs"), b"{")
        rolling.scene.advance(40.0)
        rolling.scene.delete(KEYS.failsafe("rcs"))
        rolling.scene.advance(10.0)
        if rolling.state is None or rolling.state.back:
            break
    else:
        raise AssertionError(f"ten freezes put the deadline off: {rolling.state}")
    for agent in rolling.scene.agents.values():
        for instance in list(agent.sick):  # old pods come to the same places
            agent.ail(instance, sick=False)
    rolling.whole("reverted")


def test_a_new_controller_that_is_deleted_by_hand_aborts_it(rolling: Rolling) -> None:
    rollout = slowly(rolling)
    rolling.scene.delete(KEYS.record("rcs", rollout.new))
    rolling.scene.advance(20.0)
    assert (rolling.rollout, rolling.ended) == (None, ["aborted"])
    (rc,) = rolling.scene.sight.rcs.values()
    assert (rc.id, rc.managed_by, rc.taken) == (rollout.old, "", False)
    for place in rolling.scene.places(rollout.new):
        rolling.scene.delete(KEYS.pod(rollout.new, *place))
        rolling.scene.delete(KEYS.intent(*place))
    rolling.scene.delete(KEYS.name("rcs", f"web-{rollout.id[:6]}"))
