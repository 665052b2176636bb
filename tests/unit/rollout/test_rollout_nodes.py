"""A new version comes to the nodes of a daemon set: the plans of both workers, in a world as a value."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from farmd.daemonset import facts as ds_facts
from farmd.daemonset import plan as ds_planning
from farmd.pods.state import PodState
from farmd.rollout import nodes, progress
from farmd.rollout import plan as planning
from farmd.rollout.facts import FACTS, Plan, Snapshot
from scheduler.model import Assignment
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.pods import Pod
from store.policies import Policy, Stage
from store.reality import Glance, Intent
from store.rollouts import Rollout, RolloutState
from tests.effort import tries

DS, POD, OLDER, NEWER, FIXED, NOW = "d" * 16, "logs", "a" * 64, "b" * 64, "c" * 64, 10_000.0

SET = DaemonSet(
    id=DS, name="logs", manifest=OLDER, coming=NEWER, managed_by="rollouts/1", min_healthy_time=0.0
)


def pod(manifest: str, *, healthy: bool | None = True, at: float = NOW - 900, **fields: Any) -> PodState:
    """A pod that its agent acted on; ``healthy`` None: nothing is known of it yet."""
    seen = Glance(manifest, DS, "running", 1.0, "passing" if healthy else "critical", 5, at)
    intent = Stored("intent", Intent(manifest, DS), 5, b"")
    return PodState(
        Stored("pod", Pod(manifest=manifest, at=at), 4, b""),
        intent,
        None if healthy is None else seen,
        **fields,
    )


@dataclasses.dataclass
class Nodes:
    """A daemon set on nodes, its rollout, and agents that do as they are told."""

    pods: dict[str, PodState]
    policy: Policy
    daemonset: DaemonSet = SET
    state: RolloutState | None = None
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    canaries: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    vacant: set[str] = dataclasses.field(default_factory=set)
    bad: bool = False
    bad_version: str = ""
    outcome: str = ""
    now: float = NOW

    def supersede(self) -> None:
        """What a person's command writes: another version in place of the one that is coming."""
        self.daemonset = msgspec.structs.replace(
            self.daemonset, coming=FIXED, coming_held=True, superseded=[NEWER]
        )
        self.fields |= {"to_manifest": FIXED, "superseded": [NEWER], "wish": ""}

    def rollout(self) -> Rollout:
        return Rollout(
            id="1",
            name="logs",
            of="daemonsets",
            old=DS,
            new=DS,
            from_manifest=OLDER,
            replicas=1,
            started_from=1,
            started_to=0,
            policy=self.policy,
            **{"to_manifest": NEWER, **self.fields},
        )

    def decide(self, **fields: Any) -> Plan:
        places = {(node, POD): state for node, state in self.pods.items()}
        back = self.state is not None and self.state.back
        sized, old, new = nodes.sides(self.daemonset, self.rollout(), places, back=back)
        spread = self.daemonset.coming_to, self.daemonset.coming_held
        away = sum(state.absent for state in self.pods.values())
        shot = Snapshot(
            rollout=sized, state=self.state, old=old, new=new, locks=True, now=self.now, unread=FACTS,
            spread=spread, away=away, risen=NOW, **fields,
        )  # fmt: skip
        found = planning.decide(shot)
        assert isinstance(found, Plan)
        assert not found.moves.moves
        assert not found.repairs
        if found.turn is not None:
            self.state = found.turn.state
            to, held = progress.spread(dataclasses.replace(shot, state=self.state))
            self.daemonset = msgspec.structs.replace(self.daemonset, coming_to=to, coming_held=held)
            self.outcome = found.turn.outcome if found.turn.action == "end" else ""
        return found

    def work(self) -> None:
        """One cycle of the daemon set's worker."""
        places = {(node, POD): state for node, state in self.pods.items()}
        chosen = ds_facts.renewed(self.daemonset, places, self.vacant, self.canaries, self.unfit)
        seen = ds_facts.Snapshot(
            daemonset=self.daemonset, pods=places, vacant=tuple(sorted(self.vacant)), now=self.now,
            offer=tuple(Assignment(node, POD) for node in sorted(self.vacant)), renewed=chosen,
        )  # fmt: skip
        plan = ds_planning.decide(seen)
        assert isinstance(plan, ds_facts.Plan)
        for owner, part in ds_facts.by_version(seen, plan):
            for node in [goal.node for goal in part.additions] + [node for node, _ in part.replacements]:
                self.pods[node] = pod(owner.manifest, healthy=None, at=self.now)
                self.vacant.discard(node)

    def settle(self) -> None:
        """Agents report how the pods are that they started."""
        for node, state in self.pods.items():
            if state.reality is None and not state.absent:
                manifest = state.pod.record.manifest
                healthy = not ((self.bad and manifest == NEWER) or manifest == self.bad_version)
                self.pods[node] = pod(manifest, healthy=healthy, at=state.pod.record.at)

    def run(self, steps: int = 60) -> list[int]:
        """How many nodes have the new version, after each change."""
        seen = [self.new]
        for _ in range(steps):
            self.decide()
            if self.outcome:
                break
            self.work()
            if self.new != seen[-1]:
                seen.append(self.new)
            self.settle()
            self.now += 1.0
        return seen

    @property
    def new(self) -> int:
        return sum(state.pod.record.manifest == NEWER for state in self.pods.values())

    @property
    def renewed(self) -> set[str]:
        return {node for node, state in self.pods.items() if state.pod.record.manifest == NEWER}


def fleet(count: int, *stages: Any, **fields: Any) -> Nodes:
    policy = Policy(stages=list(stages), health_deadline=5.0)
    return Nodes({f"n{number}": pod(OLDER) for number in range(1, count + 1)}, policy, **fields)


def test_two_stages_by_count_go_one_after_the_other_within_the_floor() -> None:
    world = fleet(4, 2, "100%")
    assert world.run() == [0, 1, 2, 3, 4]
    assert world.outcome == "done"


def test_a_stage_waits_for_its_word_and_its_rest() -> None:
    world = fleet(4, Stage(to=1, bake=30.0), Stage(to="100%", approve=True))
    world.run(20)
    assert (world.new, world.state and world.state.phase) == (1, "baking")
    world.run(40)
    assert world.new == 1
    assert (plan := world.decide()).blocked is not None
    assert (plan.blocked.code, plan.asks) == ("unapproved", 2)
    world.fields["approved"] = 2
    world.run()
    assert (world.new, world.outcome) == (4, "done")


@pytest.mark.parametrize("intent", [None, Intent(NEWER, "e" * 16)])
def test_a_pod_whose_intent_was_lost_or_changed_is_left_to_the_daemon_sets_worker(
    intent: Intent | None,
) -> None:
    world = fleet(4, 2, "100%")
    world.decide()
    stored = None if intent is None else Stored("intent", intent, 9, b"")
    world.pods["n4"] = msgspec.structs.replace(world.pods["n4"], intent=stored)
    assert world.state is not None
    assert world.state.phase == "moving"
    for _ in range(3):
        world.decide()


def test_canaries_come_first() -> None:
    world = fleet(4, 2, Stage(to="100%", approve=True), canaries=frozenset({"n3", "n4"}))
    world.run()
    assert world.renewed == {"n3", "n4"}


def test_a_paused_rollout_reaches_no_further_node_until_it_is_resumed() -> None:
    world = fleet(5, "100%")
    world.run(4)
    reached = world.new
    assert 0 < reached < 5
    world.fields["paused"] = True
    world.run(20)
    assert world.new == reached
    world.fields |= {"paused": False, "resumed": 1}
    world.run()
    assert (world.new, world.outcome) == (5, "done")


def test_a_version_that_fails_goes_back_on_the_nodes_that_have_it() -> None:
    world = fleet(4, 2, "100%", bad=True)
    seen = world.run()
    assert max(seen) == 1
    assert (world.new, world.outcome) == (0, "reverted")
    assert all(state.healthy for state in world.pods.values())


def test_a_person_reverts_it_at_any_stage() -> None:
    world = fleet(4, 3, Stage(to="100%", approve=True))
    world.run()
    assert world.new == 3
    world.fields["wish"] = "revert"
    world.run()
    assert (world.new, world.outcome) == (0, "reverted")


def test_absent_nodes_hold_no_stage_up_and_are_told() -> None:
    world = fleet(4, 2, "100%", daemonset=msgspec.structs.replace(SET, min_health=1))
    world.pods["n1"] = pod(OLDER, absent=True)
    ends: list[Plan] = []
    for _ in range(60):
        ends.append(world.decide())
        if world.outcome:
            break
        world.work()
        world.settle()
    assert (world.renewed, world.outcome) == ({"n2", "n3", "n4"}, "done")
    assert ends[-1].turn is not None
    assert ends[-1].turn.reason == "3 pods of the new version are available; 1 absent node not waited for"


def test_a_node_that_leaves_with_the_new_version_lets_no_further_one_be_taken() -> None:
    world = fleet(5, 2, Stage(to="100%", approve=True), daemonset=msgspec.structs.replace(SET, min_health=1))
    world.run()
    assert world.renewed == {"n1", "n2"}
    world.pods["n1"] = pod(NEWER, absent=True)
    world.run(10)
    assert world.renewed == {"n1", "n2"}
    world.pods["n2"] = pod(NEWER, absent=True)
    world.run(10)
    assert world.renewed == {"n1", "n2"}


def test_nodes_that_cannot_run_the_new_version_are_left_out_and_halt_the_stage_that_needs_them() -> None:
    world = fleet(8, "50%", "100%", unfit=frozenset({"n1", "n2"}))
    world.run()
    assert (len(world.renewed), world.state and world.state.stage) == (6, 1)
    assert not world.renewed & {"n1", "n2"}
    world.now += 700.0
    world.run(1)
    assert world.state is not None
    assert (world.state.phase, world.state.fault) == ("halted", True)


@pytest.mark.parametrize(("first", "expected"), [("50%", 3), (2, 2)])
def test_nodes_that_join_get_the_version_of_their_stage(first: Any, expected: int) -> None:
    world = fleet(4, first, Stage(to="100%", approve=True))
    world.run()
    assert world.new == 2
    world.vacant |= {"n8", "n9"}
    world.run()
    assert world.new == expected
    world.fields["approved"] = 2
    world.decide()
    world.vacant |= {"m1"}
    world.work()
    assert world.pods["m1"].pod.record.manifest == NEWER


def test_a_node_with_a_pod_of_each_version_keeps_the_place_of_its_stage() -> None:
    coming = msgspec.structs.replace(SET, coming_to=1, coming_beside=True)
    for newer, older in (("logs~0", "logs~1"), ("logs~1", "logs~0")):
        pods = {
            ("n1", "logs~0"): pod(OLDER),
            ("n2", newer): pod(NEWER, healthy=None),
            ("n2", older): pod(OLDER),
        }
        assert ds_facts.renewed(coming, pods, (), {"n1"}, ()) == {"n2"}
        found = ds_facts.paired(coming, pods, {"n2"})
        assert all(state.retained for state in found.values())
        pods["n2", newer] = pod(NEWER)
        found = ds_facts.paired(coming, pods, {"n2"})
        assert [place for place, state in found.items() if not state.retained] == [("n2", older)]
        found = ds_facts.paired(coming, pods, ())
        assert [place for place, state in found.items() if not state.retained] == [("n2", newer)]


def versions(world: Nodes) -> str:
    """The versions of the nodes, in their order."""
    return "".join(world.pods[node].pod.record.manifest[0] for node in sorted(world.pods))


@pytest.mark.parametrize("phase", ["waiting", "halted", "going back", "paused"])
def test_a_fix_replaces_the_bad_version_one_node_at_first_and_then_the_stages_begin_again(phase: str) -> None:
    floor = msgspec.structs.replace(SET, min_health=0)
    world = fleet(5, 3, Stage(to="100%", approve=True), daemonset=floor)
    world.run()
    assert versions(world) == "bbbaa"
    world.bad = True
    if phase == "halted":
        world.pods |= {node: pod(NEWER, healthy=False) for node in ("n1", "n2", "n3")}
    if phase == "going back":
        world.fields["wish"] = "revert"
        world.decide()
        world.pods["n1"] = pod(OLDER)
    if phase == "paused":
        world.fields["paused"] = True
        world.run(3)
    world.supersede()
    seen = list[str]()
    for _ in range(30):
        world.work()
        seen.append(versions(world))
        if phase == "paused" and len(seen) == 5:
            assert set(seen) == {"bbbaa"}
            world.fields |= {"paused": False, "resumed": 1}
        world.decide()
        world.settle()
        world.now += 1.0
    back = phase == "going back"
    assert [each for number, each in enumerate(seen) if each not in seen[:number]] == (
        ["abbaa", "acbaa", "accaa", "cccaa"] if back else ["bbbaa", "cbbaa", "cccaa"]
    )
    world.fields["approved"] = 2
    world.run()
    assert (versions(world), world.outcome) == ("ccccc", "done")


@pytest.mark.parametrize("word", ["revert", "fails"])
def test_a_fix_that_fails_or_is_reverted_goes_back_to_the_version_of_before(word: str) -> None:
    world = fleet(4, 3, "100%", daemonset=msgspec.structs.replace(SET, min_health=0))
    world.fields["paused"] = False
    world.run(3)
    world.supersede()
    world.decide()
    world.work()
    assert "c" in versions(world)
    if word == "revert":
        world.fields["wish"] = "revert"
    else:
        world.bad_version = FIXED
    world.run(80)
    assert (versions(world), world.outcome) == ("aaaa", "reverted")


@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 12), max_size=3),
    st.data(),
    st.sampled_from([None, 0, 1, "50%"]),
)
@settings(max_examples=tries(60), deadline=None)
def test_whatever_is_said_it_ends_with_one_version_and_never_exceeds_its_stage(
    count: int, firsts: list[int], data: st.DataObject, floor: Any
) -> None:
    assume(not msgspec.structs.replace(SET, min_health=floor).standstill(count))
    stages = [*sorted(min(each, count) for each in firsts), "100%"]
    world = fleet(count, *stages, daemonset=msgspec.structs.replace(SET, min_health=floor))
    world.bad = data.draw(st.booleans())
    for _ in range(200):
        word = data.draw(st.sampled_from(["", "", "", "pause", "resume"]))
        if word:
            world.fields |= {"paused": word == "pause", "resumed": world.fields.get("resumed", 0) + 1}
        before = world.new
        world.decide()
        if world.outcome:
            break
        world.work()
        limit = world.daemonset.renewed(count)
        assert world.new <= max(before, limit)
        if world.daemonset.coming_held:
            assert world.new == before
        world.settle()
        world.now += 1.0
    else:
        world.fields["paused"] = False
        world.run(200)
    assert (world.new, world.outcome) == ((0, "reverted") if world.bad else (count, "done"))
