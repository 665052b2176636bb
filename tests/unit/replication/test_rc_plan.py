"""What a replication controller decides: p2's table (``pkg/rc``), then the rules that are ours.

The scheduler's own pure functions make the offer and say which nodes may keep their pods, so that the
table speaks of nodes and labels, as p2's tests do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.pods.state import PodState
from farmd.replication.facts import Offer, Plan, Snapshot
from farmd.replication.plan import decide, removal_order, status
from scheduler.decide import allocation, eligibility
from scheduler.fleet import node_views
from scheduler.model import PlacementRequest
from store.entry import Stored
from store.labels import RC_ID_LABEL, pod_labels
from store.manifests import Manifest
from store.nodes import Agent, Node
from store.pods import Pod, PodKey
from store.rcs import ReplicationController
from store.reality import Health, Intent, Reality
from store.selectors import parse
from tests.plans import said

RC = "00aa"
POD = "testPod"
MANIFEST = Manifest(id=POD, command=["run"])
SHA, NEWER = "a" * 64, "b" * 64
GOOD, BAD = {"nodeQuality": "good"}, {"nodeQuality": "bad"}
SELECTOR = "nodeQuality=good"

Place = tuple[str, str]


def controller(replicas: int, **fields: Any) -> ReplicationController:
    return ReplicationController(
        id=RC,
        name="test",
        manifest=SHA,
        replicas_desired=replicas,
        pod_id=POD,
        **({"node_selector": SELECTOR} | fields),
    )


def stored(record: Any, index: int = 5) -> Stored[Any]:
    return Stored("key", record, index, b"")


def pod_state(
    *, manifest: str = SHA, intent: Intent | str | None = "own", healthy: bool = True, at: float = 0.0
) -> PodState:
    """A pod; ``intent`` None is a lost one, ``own`` the one that belongs there."""
    wanted = Intent(manifest, RC) if intent == "own" else intent
    assert not isinstance(wanted, str)
    reality = Reality(
        manifest=manifest,
        owner=RC,
        started=1.0,
        intent=5,
        health=Health("passing" if healthy else "critical"),
    )
    return PodState(
        stored(Pod(manifest=manifest, at=at)), stored(wanted) if wanted is not None else None, reality
    )


def snapshot(
    rc: ReplicationController,
    nodes: Mapping[str, Mapping[str, str]],
    pods: Mapping[str, PodState] | None = None,
    **fields: Any,
) -> Snapshot:
    """Reads as the worker does: the scheduler offers places, and judges the nodes that have pods."""
    held = {(node, POD): state for node, state in (pods or {}).items()}
    view = node_views(
        {name: Node(labels=dict(labels)) for name, labels in nodes.items()},
        {name: Agent(node=name, version="1") for name in nodes},
        {},
        {PodKey(RC, *place): state.pod.record for place, state in held.items()},
    )
    request = PlacementRequest(manifest=MANIFEST, selector=parse(rc.node_selector), owner=RC)
    offer = Offer()
    if len(held) < rc.replicas_desired:
        found = allocation(request, rc.replicas_desired - len(held), view)
        offer = Offer(found.assignments, found.missing, found.why)
    retained = set(eligibility(request, view).retained)
    judged = {
        place: PodState(state.pod, state.intent, state.reality, place[0] in retained)
        for place, state in held.items()
    }
    return Snapshot(rc=rc, pods=judged, offer=offer, **fields)


def on(names: Iterable[str], **fields: Any) -> dict[str, PodState]:
    return {name: pod_state(**fields) for name in names}


def good(*names: str) -> dict[str, Mapping[str, str]]:
    return dict.fromkeys(names, GOOD)


def added(plan: Plan) -> list[str]:
    return sorted(assignment.node for assignment in plan.additions)


def removed(plan: Plan) -> list[str]:
    return sorted(node for node, _ in plan.removals)


FIVE = [f"node{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("case", "rc", "nodes", "pods", "additions", "removals", "blocked"),
    [
        ("DoNothing", controller(0), good("n1"), {}, [], [], False),
        ("CantSchedule", controller(1), {"n1": BAD}, {}, [], [], True),
        ("CantSchedule: no node at all", controller(1), {}, {}, [], [], True),
        ("Schedule", controller(1), {"node1": BAD, "node2": GOOD}, {}, ["node2"], [], False),
        ("SchedulePartial", controller(2), {"node1": BAD, "node2": GOOD}, {}, ["node2"], [], True),
        ("ScheduleTwice", controller(2), good("node1", "node2"), on(["node1"]), ["node2"], [], False),
        ("Unschedule", controller(0), good("node1"), on(["node1"]), [], ["node1"], False),
        ("RCDoesNotFixMembership", controller(1), {"n1": BAD, "n2": GOOD}, on(["n1"]), [], [], False),
        ("AddPods", controller(5), good(*FIVE), {}, FIVE, [], False),
        ("AddPodsDisabled", controller(5, disabled=True), good(*FIVE), {}, [], [], False),
        ("RemovePods: ineligible first", controller(4), good(*FIVE[1:]), on(FIVE), [], FIVE[:1], False),
        ("RemovePodsDisabled", controller(3, disabled=True), good(*FIVE), on(FIVE), [], [], False),
        ("ScheduleMoreThan5", controller(7), good(*"abcdefg"), {}, list("abcdefg"), [], False),
        ("UnscheduleMoreThan5", controller(0), good(*"abcdefg"), on("abcdefg"), [], list("abcdefg"), False),
        ("equal count is no work", controller(5), good(*FIVE), on(FIVE), [], [], False),
        (
            "managed: R14",
            controller(5, managed_by="rollouts/1", taken=True),
            good(*FIVE),
            on(["x"]),
            [],
            [],
            False,
        ),
    ],
)
def test_p2_table(
    case: str,
    rc: ReplicationController,
    nodes: dict[str, Any],
    pods: dict[str, PodState],
    additions: list[str],
    removals: list[str],
    blocked: bool,
) -> None:
    plan = decide(snapshot(rc, nodes, pods))
    assert (added(plan), removed(plan), bool(plan.blocked)) == (additions, removals, blocked), case
    assert plan.repairs == plan.replacements == ()


def test_remove_pods_takes_exactly_the_surplus() -> None:
    plan = decide(snapshot(controller(3), good(*FIVE), on(FIVE)))
    assert len(plan.removals) == 2


def test_prefer_unschedule_ineligible_among_1000() -> None:
    names = [f"node{number}" for number in range(1000)]
    nodes = {name: BAD if name == "node503" else GOOD for name in names}
    plan = decide(snapshot(controller(999), nodes, on(names)))
    assert removed(plan) == ["node503"]
    assert not plan.blocked


@pytest.mark.parametrize(
    ("case", "intent", "repaired"),
    [
        ("ConsistencyNoChange", "own", False),
        ("ConsistencyModify", Intent(NEWER, RC), True),
        ("ConsistencyDelete", None, True),
        ("a foreign intent is never touched", Intent(SHA, "ffff"), False),
        ("a foreign intent with another manifest neither", Intent(NEWER, "ffff"), False),
    ],
)
def test_consistency(case: str, intent: Intent | str | None, repaired: bool) -> None:
    plan = decide(snapshot(controller(1), good("n1"), {"n1": pod_state(intent=intent)}))
    assert plan.repairs == ((("n1", POD),) if repaired else ()), case
    assert plan.additions == plan.removals == plan.replacements == ()


def test_consistency_leaves_ineligible_nodes_untouched() -> None:
    plan = decide(snapshot(controller(1), {"n1": BAD}, {"n1": pod_state(intent=None)}))
    assert plan.empty


def test_a_foreign_intent_on_a_place_of_ours_is_a_blocked_reason() -> None:
    plan = decide(snapshot(controller(1), good("n1"), {"n1": pod_state(intent=Intent(SHA, "ffff"))}))
    assert said(plan) == f"n1/{POD}: its intent belongs to ffff"


def test_what_leaves_is_not_repaired_first() -> None:
    plan = decide(snapshot(controller(0), good("n1"), {"n1": pod_state(intent=None)}))
    assert plan.removals == (("n1", POD),)
    assert plan.repairs == ()


def test_reserved_labels_win_over_the_controllers_own() -> None:
    rc = controller(1, pod_labels={"pod_id": "no", RC_ID_LABEL: "no", "tier": "web"})
    assert pod_labels(rc, MANIFEST) == {"pod_id": POD, RC_ID_LABEL: RC, "tier": "web"}


# -- who goes first ----------------------------------------------------------------------------
def test_removal_takes_ineligible_then_unhealthy_then_the_newest() -> None:
    nodes = {"a": GOOD, "b": GOOD, "c": GOOD, "d": BAD, "e": GOOD}
    pods = {
        "a": pod_state(at=10.0),
        "b": pod_state(at=50.0),
        "c": pod_state(at=20.0, healthy=False),
        "d": pod_state(at=5.0),
        "e": pod_state(at=30.0),
    }
    order = [decide(snapshot(controller(left), nodes, pods)).removals for left in (4, 3, 2, 1, 0)]
    assert [node for node, _ in order[-1]] == ["d", "c", "b", "e", "a"]
    assert all(order[-1][: len(fewer)] == fewer for fewer in order)


def test_removal_order_is_the_same_whatever_the_order_of_reading() -> None:
    pods = on(FIVE)
    forward = decide(snapshot(controller(2), good(*FIVE), pods))
    backward = decide(snapshot(controller(2), good(*FIVE), dict(reversed(pods.items()))))
    assert forward.removals == backward.removals


# -- R14 ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 1, 3])
def test_r14_the_pods_of_a_controller_that_is_taken_are_its_managers(count: int) -> None:
    rc = controller(count, managed_by="rollouts/1", taken=True)
    pods = {"n1": pod_state(intent=None), "n2": pod_state(manifest=NEWER)}
    plan = decide(snapshot(rc, good("n1", "n2", "n3"), pods))
    assert plan.additions == plan.removals == plan.replacements == plan.repairs == ()


def test_r14_a_controller_that_is_lent_heals_itself() -> None:
    rc = controller(2, managed_by="rollouts/1")
    plan = decide(snapshot(rc, good("n1", "n2", "n3"), {"n1": pod_state(intent=None)}))
    assert plan.repairs == (("n1", POD),)
    assert len(plan.additions) == 1


# -- R18 ---------------------------------------------------------------------------------------
def test_r18_frozen_removes_and_replaces_nothing() -> None:
    pods = on(FIVE[:4]) | {FIVE[4]: pod_state(manifest=NEWER)}
    plan = decide(snapshot(controller(3), good(*FIVE), pods, frozen="doubt"))
    assert plan.empty
    assert said(plan) == "frozen: doubt"


def test_r18_frozen_additions_and_repairs_go_on() -> None:
    pods = {FIVE[0]: pod_state(intent=None)}
    plan = decide(snapshot(controller(3), good(*FIVE), pods, frozen="doubt"))
    assert len(plan.additions) == 2
    assert plan.repairs == ((FIVE[0], POD),)


def test_r18_an_explicit_command_after_the_freeze_is_obeyed() -> None:
    state = snapshot(controller(3), good(*FIVE), on(FIVE), frozen="doubt", commanded=True)
    assert len(decide(state).removals) == 2
    assert not decide(state).blocked


def test_r18_a_controller_with_nothing_to_remove_is_not_called_frozen() -> None:
    state = snapshot(controller(5), good(*FIVE), on(FIVE), frozen="doubt")
    assert not decide(state).blocked
    assert status(state, decide(state), "f", 0.0).state == "converged"


# -- replacement in place ----------------------------------------------------------------------
def outdated(names: Iterable[str], **fields: Any) -> dict[str, PodState]:
    """Pods whose manifest is not the controller's any more."""
    return on(names, manifest=NEWER, **fields)


@pytest.mark.parametrize(
    ("case", "max_unavailable", "pods", "replaced"),
    [
        ("one at a time", 1, outdated("abc"), ["a"]),
        ("as many as allowed", 2, outdated("abc"), ["a", "b"]),
        ("one is down already: wait", 1, outdated("ab") | on("c", healthy=False), []),
        ("one down of two allowed", 2, outdated("ab") | on("c", healthy=False), ["a"]),
        ("what does not serve costs nothing", 1, outdated("ab") | outdated("c", healthy=False), ["c"]),
        ("all down: all at once", 1, outdated("abc", healthy=False), list("abc")),
        ("nothing is outdated", 1, on("abc"), []),
    ],
)
def test_replacements_keep_max_unavailable(
    case: str, max_unavailable: int, pods: dict[str, PodState], replaced: list[str]
) -> None:
    rc = controller(len(pods), max_unavailable=max_unavailable)
    plan = decide(snapshot(rc, good(*pods), pods))
    assert [node for node, _ in plan.replacements] == replaced, case
    assert plan.additions == plan.removals == ()


@pytest.mark.parametrize(("percent", "replaced"), [(50, ["a", "b"]), (34, ["a"]), (1, ["a"])])
def test_replacements_keep_a_share_of_max_unavailable(percent: int, replaced: list[str]) -> None:
    rc = controller(5, max_unavailable_percent=percent)
    plan = decide(snapshot(rc, good(*"abcde"), outdated("abcde")))
    assert [node for node, _ in plan.replacements] == replaced


def test_a_replacement_never_takes_a_foreign_intent_over() -> None:
    foreign = {"a": pod_state(manifest=NEWER, intent=Intent(NEWER, "ffff"), healthy=False)}
    plan = decide(snapshot(controller(1), good("a"), foreign))
    assert plan.empty
    assert said(plan) == f"a/{POD}: its intent belongs to ffff"


def test_a_foreign_intent_does_not_hold_the_other_replacements_up() -> None:
    pods = outdated("bc") | {"a": pod_state(manifest=NEWER, intent=Intent(NEWER, "ffff"))}
    plan = decide(snapshot(controller(3), good(*pods), pods))
    assert [node for node, _ in plan.replacements] == ["b"]


# -- status ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("case", "rc", "nodes", "pods", "fields", "state"),
    [
        ("all well", controller(2), good("a", "b"), on("ab"), {}, "converged"),
        ("missing", controller(2), good("a", "b"), on("a"), {}, "progressing"),
        ("unhealthy", controller(2), good("a", "b"), on("a") | on("b", healthy=False), {}, "progressing"),
        ("outdated", controller(1), good("a"), outdated("a"), {}, "progressing"),
        ("starved", controller(3), good("a", "b"), on("ab"), {}, "blocked"),
        ("disabled", controller(3, disabled=True), good("a"), on("a"), {}, "disabled"),
        ("frozen", controller(0), good("a"), on("a"), {"frozen": "x"}, "frozen"),
        ("empty", controller(0), {}, {}, {}, "converged"),
    ],
)
def test_status_says_what_stands_in_the_way(
    case: str,
    rc: ReplicationController,
    nodes: dict[str, Any],
    pods: dict[str, PodState],
    fields: dict[str, Any],
    state: str,
) -> None:
    shot = snapshot(rc, nodes, pods, **fields)
    said = status(shot, decide(shot), "farm-1", 7.0)
    assert said.state == state, case
    assert bool(said.reason) == (state in {"blocked", "frozen"})
    assert (said.desired, said.placed, said.farm) == (rc.replicas_desired, len(pods), "farm-1")


def test_an_outdated_pod_serves_as_long_as_it_passes_its_check() -> None:
    pods = on("a") | on("b", healthy=False) | outdated("cd") | outdated("e", healthy=False)
    shot = snapshot(controller(5), good(*"abcde"), pods)
    said = status(shot, decide(shot), "farm-1", 7.0)
    assert (said.placed, said.healthy, said.outdated, said.serving) == (5, 1, 3, 3)


# -- whatever the world looks like -------------------------------------------------------------
@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    names = [f"n{number}" for number in range(draw(st.integers(0, 8)))]
    nodes = {name: draw(st.sampled_from([GOOD, BAD])) for name in names}
    held = draw(st.sets(st.sampled_from(names))) if names else set()
    intents = st.sampled_from(["own", None, Intent(NEWER, RC), Intent(SHA, "ffff")])
    pods = {
        name: pod_state(
            manifest=draw(st.sampled_from([SHA, NEWER])),
            intent=draw(intents),
            healthy=draw(st.booleans()),
            at=draw(st.floats(0, 100)),
        )
        for name in sorted(held)
    }
    rc = controller(
        draw(st.integers(0, 8)),
        disabled=draw(st.booleans()),
        taken=draw(st.booleans()),
        max_unavailable=draw(st.integers(1, 3)),
    )
    return snapshot(
        rc, nodes, pods, frozen=draw(st.sampled_from([None, "doubt"])), commanded=draw(st.booleans())
    )


@given(worlds())
def test_no_plan_ever_overshoots_or_touches_what_is_not_ours(shot: Snapshot) -> None:
    plan, rc = decide(shot), shot.rc
    if rc.disabled:
        assert plan.empty
    after = len(shot.pods) + len(plan.additions) - len(plan.removals)
    low, high = sorted((len(shot.pods), rc.replicas_desired))
    assert low <= after <= high
    assert not (plan.additions and plan.removals)
    assert not {(a.node, a.instance) for a in plan.additions} & set(shot.pods)
    touched = [*plan.removals, *plan.repairs, *plan.replacements]
    assert set(touched) <= set(shot.pods)
    assert not set(plan.removals) & {*plan.repairs, *plan.replacements}
    for place in (*plan.repairs, *plan.replacements):
        intent = shot.pods[place].intent
        assert intent is None or intent.record.owner == RC
    if shot.frozen and not shot.commanded:
        assert not plan.removals
        assert not plan.replacements


@given(worlds())
def test_no_healthy_pod_goes_before_an_unhealthy_one_of_its_class(shot: Snapshot) -> None:
    going = set(decide(shot).removals)
    ranks = {place: removal_order(place, state) for place, state in shot.pods.items()}
    staying = [rank for place, rank in ranks.items() if place not in going]
    assert all(ranks[place] <= stays for place in going for stays in staying)
