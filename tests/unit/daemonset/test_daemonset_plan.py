"""What a daemon set decides: where pods go, what holds it back, and at what pace it changes nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.daemonset.facts import Plan, Snapshot, one_a_node
from farmd.daemonset.plan import MINUTE, NOWHERE, SETTLING_SECONDS, decide, status
from farmd.pods.state import PodState
from scheduler.model import Assignment
from store.daemonsets import DaemonSet
from store.entry import Stored
from store.pods import Pod
from store.reality import Glance, Intent
from tests.plans import said

DS, POD, SHA, NEWER = "d" * 16, "logs", "a" * 64, "b" * 64
NOW = 10_000.0


def daemonset(**fields: Any) -> DaemonSet:
    return DaemonSet(
        **({"id": DS, "name": "logs", "manifest": SHA, "pod_id": POD, "min_healthy_time": 0.0} | fields)
    )


def pod(
    *,
    manifest: str = SHA,
    state: str = "passing",
    at: float = 0.0,
    intent: Any = "own",
    leaving: str = "",
    contact: str = "present",
    **fields: Any,
) -> PodState:
    """A pod whose node has taken up its intent, unless ``intent`` is None (lost) or another's.

    ``leaving``: why its node may not keep it; ``contact``: whether its node's agent is heard of.
    """
    wanted = Intent(manifest, DS) if intent == "own" else intent
    stored = Stored("i", wanted, 7, b"") if wanted is not None else None
    seen = Glance(manifest, DS, "running", 1.0, state, intent=7)  # type: ignore[arg-type]
    return PodState(
        Stored("p", Pod(manifest, {}, at), 5, b""),
        stored,
        seen,
        retained=not leaving,
        draining="gentle" if leaving == "draining" else "",
        absent=contact != "present",
        lost=NOW - 9 if contact == "lost" else None,
        **fields,
    )


def snapshot(pods: dict[str, PodState], vacant: tuple[str, ...] = (), **fields: Any) -> Snapshot:
    offer = tuple(Assignment(node, POD) for node in vacant)
    standard = {"daemonset": daemonset(), "offer": offer, "nodes": len(pods) + len(vacant), "now": NOW}
    places = {(node, POD): state for node, state in pods.items()}
    return Snapshot(**(standard | {"pods": places, "vacant": vacant} | fields))


def nodes_of(places: Any) -> list[str]:
    return [place.node if isinstance(place, Assignment) else place[0] for place in places]


def state_of(seen: Snapshot) -> tuple[str, str]:
    said = status(seen, decide(seen), "farm", NOW)
    return said.state, said.reason


# -- where pods are ------------------------------------------------------------------------------
def test_every_vacant_node_gets_a_pod_and_every_leaving_one_goes() -> None:
    plan = decide(snapshot({"a": pod(), "b": pod(leaving="ineligible")}, ("c", "d")))
    assert nodes_of(plan.additions) == ["c", "d"]
    assert nodes_of(plan.removals) == ["b"]
    assert not plan.replacements + plan.repairs


def test_a_converged_one_plans_nothing_and_owns_no_timer() -> None:
    seen = snapshot({"a": pod(), "b": pod()})
    assert decide(seen) == Plan()
    assert state_of(seen) == ("converged", "")


@pytest.mark.parametrize("pods", [{}, {"a": pod(leaving="ineligible"), "b": pod(leaving="ineligible")}])
def test_where_no_node_is_eligible_nothing_is_removed_and_it_is_said(pods: dict[str, PodState]) -> None:
    seen = snapshot(pods, refused={"selector": 2, "taint": 1}, nodes=2)
    plan = decide(seen)
    assert plan.empty
    assert said(plan).startswith(f"{NOWHERE} (2 nodes: selector 2, taint 1)")
    assert ("refusing to remove the pods of 2 nodes" in said(plan)) == bool(pods)
    assert state_of(seen)[0] == "blocked"


def test_one_kept_pod_is_enough_to_trust_the_verdict_on_the_others() -> None:
    assert nodes_of(decide(snapshot({"a": pod(), "b": pod(leaving="ineligible")})).removals) == ["b"]


def test_a_drain_removes_even_where_nothing_else_is_eligible() -> None:
    seen = snapshot({"a": pod(leaving="draining"), "b": pod(leaving="ineligible")})
    plan = decide(seen)
    assert nodes_of(plan.removals) == ["a"]
    assert "refusing to remove the pods of 1 node" in said(plan)


def test_disabled_means_no_effect_at_all() -> None:
    seen = snapshot(
        {"a": pod(leaving="ineligible"), "b": pod(intent=None)},
        ("c",),
        daemonset=daemonset(disabled=True, manifest=NEWER),
    )
    assert decide(seen) == Plan()
    assert state_of(seen) == ("disabled", "")


def test_deleting_removes_every_pod_and_adds_none() -> None:
    seen = snapshot({"a": pod(), "b": pod()}, ("c",), daemonset=daemonset(deleting=True))
    plan = decide(seen)
    assert (nodes_of(plan.removals), plan.additions) == (["a", "b"], ())
    assert seen.desired == 0


# -- R18 -----------------------------------------------------------------------------------------
def test_r18_frozen_adds_and_repairs_but_removes_and_replaces_nothing() -> None:
    pods = {"a": pod(leaving="ineligible"), "b": pod(intent=None), "c": pod(manifest="0" * 64)}
    seen = snapshot(pods, ("d",), frozen="agents: gone")
    plan = decide(seen)
    assert (nodes_of(plan.additions), nodes_of(plan.repairs)) == (["d"], ["b"])
    assert plan.removals == plan.replacements == ()
    assert said(plan) == "frozen: agents: gone"
    assert state_of(seen)[0] == "frozen"


def test_r18_a_record_changed_since_the_freeze_is_a_persons_word() -> None:
    seen = snapshot({"a": pod(leaving="ineligible"), "b": pod()}, frozen="doubt", commanded=True)
    assert nodes_of(decide(seen).removals) == ["a"]


def test_r18_a_freeze_that_holds_nothing_back_is_not_said() -> None:
    assert state_of(snapshot({"a": pod()}, frozen="doubt")) == ("converged", "")


@pytest.mark.parametrize("commanded", [False, True])
def test_r18_deleting_waits_for_the_thaw_unless_it_was_asked_for_since(commanded: bool) -> None:
    seen = snapshot({"a": pod()}, daemonset=daemonset(deleting=True), frozen="x", commanded=commanded)
    assert bool(decide(seen).removals) is commanded


# -- contention, and what belongs to others ------------------------------------------------------
def test_contention_adds_and_replaces_nothing_but_lets_pods_leave() -> None:
    pods = {"a": pod(), "b": pod(leaving="draining"), "c": pod(manifest=NEWER)}
    record = daemonset(min_health=0)
    plan = decide(snapshot(pods, ("d",), daemonset=record, contention="contends with daemonset 'old'"))
    assert plan.additions == plan.replacements == ()
    assert nodes_of(plan.removals) == ["b"]
    assert said(plan) == "contends with daemonset 'old'"


def test_an_intent_of_somebody_elses_is_neither_repaired_nor_replaced() -> None:
    other = Intent(SHA, "someone")
    pods = {"a": pod(intent=other), "b": pod(unreadable=True, intent=None), "c": pod()}
    plan = decide(snapshot(pods, daemonset=daemonset(manifest=NEWER, min_health=0)))
    assert nodes_of(plan.replacements) == ["c"]
    assert plan.repairs == ()
    assert said(plan) == f"a/{POD}: its intent belongs to someone"


# -- under a manager -----------------------------------------------------------------------------
def test_r14_while_it_is_taken_nothing_happens_and_its_pods_are_counted() -> None:
    taken = daemonset(managed_by="deployments/1", taken=True, manifest=NEWER)
    seen = snapshot({"a": pod(leaving="draining"), "b": pod(intent=None)}, ("c",), daemonset=taken)
    assert decide(seen) == Plan()
    assert status(seen, decide(seen), "farm", NOW).outdated == 2
    assert state_of(seen)[0] == "progressing"


@pytest.mark.parametrize("taken", [True, False])
def test_r14_its_manager_alone_ends_it(taken: bool) -> None:
    ending = daemonset(managed_by="deployments/1", taken=taken, deleting=True)
    for pods in ({}, {"a": pod()}):
        plan = decide(snapshot(pods, daemonset=ending))
        assert (plan.removals, plan.ends) == ((), False)
        assert said(plan) == "deployments/1 manages it, and only that may end it"


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (pod(), pod(), "web~0"),
        (pod(), pod(manifest=NEWER), "web~1"),
        (pod(), pod(manifest=NEWER, state="critical"), "web~0"),
        (pod(leaving="draining"), pod(manifest=NEWER), "web~1"),
        (pod(manifest=NEWER, settles_in=3.0), pod(), "web~1"),
    ],
)
def test_r14_of_two_pods_on_a_node_one_that_serves_may_stay(
    first: PodState, second: PodState, stays: str
) -> None:
    pods = {("a", "web~0"): first, ("a", "web~1"): second, ("b", "web~0"): pod()}
    found = one_a_node(daemonset(numbered=True, manifest=NEWER), pods)
    assert [place for place, state in found.items() if state.retained] == [("a", stays), ("b", "web~0")]


@pytest.mark.parametrize("intent", [None, Intent(NEWER, DS)])
def test_a_lost_or_altered_intent_is_repaired(intent: Intent | None) -> None:
    assert nodes_of(decide(snapshot({"a": pod(intent=intent)})).repairs) == ["a"]


def test_a_converged_one_says_where_room_is_all_that_is_missing() -> None:
    assert state_of(snapshot({"a": pod()}, refused={"held": 2, "selector": 5})) == (
        "converged",
        "not on 2 nodes with this instance held by another owner",
    )


# -- min_health ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("floor", "sick", "replaced"),
    [
        (None, 0, 1),  # all but one
        (None, 1, 1),  # the sick one, which costs nothing
        (0, 0, 10),
        (7, 0, 3),
        (7, 2, 3),  # two sick ones, and one of the eight that serve
        ("90%", 0, 1),
        ("85%", 0, 1),  # rounded up: nine
        ("0%", 0, 10),
        (10, 0, 0),
        ("100%", 0, 0),
        ("100%", 2, 2),
    ],
)
def test_min_health_bounds_how_many_stop_serving(floor: Any, sick: int, replaced: int) -> None:
    pods = {f"n{n}": pod(state="critical" if n < sick else "passing") for n in range(10)}
    seen = snapshot(pods, daemonset=daemonset(manifest=NEWER, min_health=floor))
    plan = decide(seen)
    assert len(plan.replacements) == replaced
    assert nodes_of(plan.replacements)[:sick] == [f"n{n}" for n in range(sick)][:replaced]
    if not replaced:
        assert (
            f"min_health {floor} keeps all of 10 pods; set it to 9 or less to replace one at a time"
            in said(plan)
        )


def test_r22_a_pod_counts_as_healthy_only_in_the_start_that_its_intent_asked_for() -> None:
    stale = Stored("i", Intent(NEWER, DS), 9, b"")  # reality speaks of intent 7
    changed = PodState(
        Stored("p", Pod(NEWER, {}, NOW - 1), 5, b""),
        stale,
        Glance(NEWER, DS, "running", 1.0, "passing", intent=7),
    )
    seen = snapshot({"a": changed, "b": pod(), "c": pod()}, daemonset=daemonset(manifest=NEWER))
    plan = decide(seen)
    assert plan.replacements == ()
    assert plan.waiting.startswith("waiting for health: 2 of 3 pods available")
    assert plan.after == SETTLING_SECONDS - 1


def test_r22_what_is_not_available_yet_holds_the_next_back() -> None:
    """Also on a farm that has just begun to look: nothing was changed lately, and nothing is blocked."""
    record = daemonset(manifest=NEWER, min_healthy_time=10.0)
    for at, after in ((NOW - 5, SETTLING_SECONDS + 5), (0.0, None)):
        seen = snapshot({"a": pod(manifest=NEWER, at=at, settles_in=6.0), "b": pod()}, daemonset=record)
        plan = decide(seen)
        assert (plan.replacements, said(plan), plan.after) == ((), "", after)
        assert plan.waiting.startswith("waiting for health: 1 of 2 pods available")


def test_r22_converged_counts_available_pods() -> None:
    record = daemonset(min_healthy_time=10.0)
    waits = snapshot({"a": pod(settles_in=6.0)}, daemonset=record)
    assert state_of(waits) == ("progressing", "waiting until all pods are healthy for 10 s without a break")
    assert state_of(snapshot({"a": pod()}, daemonset=record)) == ("converged", "")


def test_what_failed_to_settle_holds_the_next_back_with_a_reason() -> None:
    failed = pod(manifest=NEWER, state="critical", at=NOW - SETTLING_SECONDS)
    seen = snapshot({"a": failed, "b": pod(), "c": pod()}, daemonset=daemonset(manifest=NEWER))
    plan = decide(seen)
    assert plan.replacements == ()
    assert said(plan).startswith("no outdated pod can be replaced: 2 of 3")


def test_r21_an_absent_agents_pod_is_not_counted_on_and_not_replaced() -> None:
    pods = {"a": pod(contact="absent"), "b": pod(), "c": pod()}
    seen = snapshot(pods, daemonset=daemonset(manifest=NEWER, min_health=1))
    assert nodes_of(decide(seen).replacements) == ["b"]


def test_pods_on_lost_nodes_stay_and_do_not_count() -> None:
    seen = snapshot({"a": pod(contact="lost"), "b": pod()})
    assert decide(seen) == Plan()
    said = status(seen, decide(seen), "farm", NOW)
    assert (said.state, said.desired, said.placed, said.healthy) == ("converged", 1, 1, 1)


# -- pace ----------------------------------------------------------------------------------------
def test_the_rate_is_kept_over_a_minute_whoever_owns_it() -> None:
    pods = {"a": pod(at=NOW - 59), "b": pod(at=NOW - 10), "c": pod(at=NOW - MINUTE)}
    seen = snapshot(pods, ("d", "e", "f"), daemonset=daemonset(rate=3))
    plan = decide(seen)
    assert len(plan.additions) == 1
    assert plan.waiting == "the rate is at most 3 nodes per minute"
    assert plan.after == pytest.approx(1.0)


def test_new_nodes_come_before_new_manifests() -> None:
    seen = snapshot({"a": pod()}, ("b",), daemonset=daemonset(rate=1, manifest=NEWER, min_health=0))
    plan = decide(seen)
    assert (nodes_of(plan.additions), plan.replacements) == (["b"], ())


def test_no_more_than_max_in_progress_are_on_their_way() -> None:
    starting = {f"s{n}": pod(state="unknown", at=NOW - n) for n in range(3)}
    seen = snapshot(starting | {"ok": pod(at=NOW)}, ("x", "y", "z"), daemonset=daemonset(max_in_progress=4))
    plan = decide(seen)
    assert len(plan.additions) == 1
    assert plan.waiting == "3 nodes in progress, at most 4 may be"
    assert plan.after == SETTLING_SECONDS - 2


def test_one_that_never_got_healthy_gives_its_turn_back() -> None:
    failed = pod(state="critical", at=NOW - SETTLING_SECONDS)
    seen = snapshot({"a": failed}, ("b",), daemonset=daemonset(max_in_progress=1))
    assert nodes_of(decide(seen).additions) == ["b"]


# -- whatever the state --------------------------------------------------------------------------
STATES = st.builds(
    pod,
    manifest=st.sampled_from([SHA, NEWER]),
    state=st.sampled_from(["passing", "critical", "unknown"]),
    at=st.sampled_from([0.0, NOW - 30, NOW - 200]),
    intent=st.sampled_from(["own", None, Intent(SHA, "other")]),
    leaving=st.sampled_from(["", "", "ineligible", "draining"]),
    contact=st.sampled_from(["present", "present", "absent", "lost"]),
    settles_in=st.sampled_from([0.0, 0.0, 5.0]),
)
FLOORS = st.one_of(st.none(), st.integers(0, 12), st.integers(0, 100).map(lambda share: f"{share}%"))


@given(
    pods=st.dictionaries(st.sampled_from("abcdefghij"), STATES),
    vacant=st.integers(0, 3),
    floor=FLOORS,
    rate=st.integers(0, 4),
    progress=st.integers(1, 4),
    frozen=st.booleans(),
)
def test_by_its_own_doing_never_below_the_floor_never_faster_than_allowed(
    pods: dict[str, PodState], vacant: int, floor: Any, rate: int, progress: int, frozen: bool
) -> None:
    record = daemonset(manifest=NEWER, min_health=floor, rate=rate, max_in_progress=progress)
    seen = snapshot(
        pods,
        tuple(f"v{n}" for n in range(vacant)),
        daemonset=record,
        frozen="doubt" if frozen else None,
    )
    plan = decide(seen)
    available = {place for place, state in seen.kept.items() if state.available}
    stopped = {place for place in plan.replacements if not seen.pods[place].down}
    assert not stopped or len(available - stopped) >= record.floor(seen.desired)
    changed = len(plan.additions) + len(plan.replacements)
    assert changed <= progress
    recent = sum(state.pod.record.at > NOW - MINUTE for state in pods.values())
    assert not rate or not changed or changed + recent <= rate
    if frozen:
        assert not plan.removals + plan.replacements
    for place in plan.removals:
        assert not seen.pods[place].retained
    touched = [*plan.removals, *plan.repairs, *plan.replacements]
    assert len(set(plan.removals) & set(plan.replacements)) == 0
    assert set(touched) <= set(seen.pods)
    if not plan.empty or plan.blocked or plan.waiting:
        return
    assert all(state.retained for state in pods.values())


# -- pods that stay unhealthy --------------------------------------------------------------------
def ill(**fields: Any) -> PodState:
    """A pod that fails its check since it was placed, 301 seconds ago."""
    return pod(**({"state": "critical", "at": NOW - 301} | fields))


@pytest.mark.parametrize(
    ("case", "fields", "pods", "restarted"),
    [
        ("too long", {}, {"a": ill(), "b": pod()}, ["a"]),
        ("not for so long yet", {}, {"a": ill(at=NOW - 299), "b": pod()}, []),
        ("never", {"unhealthy_after": 0.0}, {"a": ill()}, []),
        ("as many as may be in progress", {"max_in_progress": 2}, {c: ill() for c in "abc"}, ["a", "b"]),
        ("a new manifest comes to it anyway", {}, {"a": ill(manifest=NEWER)}, []),
        ("its node must lose it", {}, {"a": ill(leaving="draining"), "b": pod()}, []),
        ("R14: taken", {"taken": True, "managed_by": "deployments/d"}, {"a": ill()}, []),
    ],
)  # fmt: skip
def test_r19_what_stays_unhealthy_is_restarted_in_place(
    case: str, fields: dict[str, Any], pods: dict[str, PodState], restarted: list[str]
) -> None:
    plan = decide(snapshot(pods, daemonset=daemonset(**({"unhealthy_after": 300.0} | fields))))
    assert isinstance(plan, Plan)
    assert nodes_of(plan.restarts) == restarted, case


@pytest.mark.parametrize("commanded", [False, True])
def test_r18_a_freeze_holds_restarts_of_unhealthy_pods_back_which_no_person_asks_for(commanded: bool) -> None:
    wanted = daemonset(unhealthy_after=300.0)
    shot = snapshot({"a": ill()}, daemonset=wanted, frozen="doubt", commanded=commanded)
    assert decide(shot) == Plan()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("manifest", [SHA, NEWER])
def test_a_pod_whose_node_shall_run_the_coming_version_is_left_to_the_rollout(
    held: bool, manifest: str
) -> None:
    wanted = daemonset(unhealthy_after=300.0, coming=NEWER, coming_held=held)
    plan = decide(snapshot({"a": ill(manifest=manifest)}, daemonset=wanted, renewed=frozenset({"a"})))
    assert isinstance(plan, Plan)
    assert nodes_of(plan.replacements) == (["a"] if manifest == SHA and not held else [])
    assert plan.restarts == ()


def test_an_unhealthy_pod_owns_a_timer_until_its_restart() -> None:
    shot = snapshot({"a": ill(at=NOW - 100), "b": pod()}, daemonset=daemonset(unhealthy_after=300.0))
    assert decide(shot).after == pytest.approx(200.0)  # type: ignore[union-attr]
