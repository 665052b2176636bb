"""R28: owners restart their pods at the pace at which they replace them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.pods.changes import NodeChanges, PodPlan, group, planned, wanted
from farmd.pods.state import PodState
from farmd.replication.facts import Plan
from farmd.replication.plan import decide, status
from store.entry import Stored
from store.keys import Keys
from store.pods import Pod
from store.reality import Intent
from tests.rc_worlds import POD, RC, SHA, controller, pod, world

NEW = Pod(manifest=SHA, at=99.0)


def restarted(snapshot: Any) -> list[str]:
    plan = decide(snapshot)
    assert isinstance(plan, Plan)
    assert (plan.additions, plan.removals, plan.repairs) == ((), (), ())
    return [node for node, _ in plan.replacements]


@pytest.mark.parametrize(
    ("case", "unavailable", "pods", "nodes"),
    [
        ("one at a time", 1, {"a": pod(), "b": pod()}, ["a"]),
        ("as many as allowed", 2, {"a": pod(), "b": pod(), "c": pod()}, ["a", "b"]),
        ("those that are down first", 1, {"a": pod(), "b": pod(healthy=False)}, ["b"]),
        ("one has not restarted yet", 1, {"a": pod(restart=1, intent=9), "b": pod()}, []),
        ("one is not available yet", 1, {"a": pod(restart=1, settles_in=3.0), "b": pod()}, []),
        ("one by one is not again", 1, {"a": pod(restart=1), "b": pod(restart=7), "c": pod()}, ["c"]),
        ("an absent agent's pod waits", 1, {"a": pod(absent=True), "b": pod()}, []),
    ],
)
def test_restarts_keep_max_unavailable(
    case: str, unavailable: int, pods: dict[str, PodState], nodes: list[str]
) -> None:
    rc = controller(len(pods), max_unavailable=unavailable, restart=1)
    assert restarted(world(rc, pods)) == nodes, case


@pytest.mark.parametrize("fields", [{"disabled": True}, {"managed_by": "rollouts/1", "taken": True}])
def test_who_leaves_its_pods_alone_restarts_none(fields: dict[str, Any]) -> None:
    assert restarted(world(controller(1, restart=1, **fields), {"a": pod()})) == []


def test_r18_a_freeze_holds_restarts_back_that_were_asked_for_before() -> None:
    shot = world(controller(1, restart=1), {"a": pod()}, frozen="doubt")
    assert restarted(shot) == []
    assert status(shot, decide(shot), "f", 0.0).state == "frozen"  # type: ignore[arg-type]
    assert restarted(world(controller(1, restart=1), {"a": pod()}, frozen="doubt", commanded=True)) == ["a"]


def test_what_is_not_restarted_yet_counts_as_outdated() -> None:
    shot = world(controller(2, restart=1), {"a": pod(restart=1), "b": pod()})
    said = status(shot, decide(shot), "f", 0.0)  # type: ignore[arg-type]
    assert (said.state, said.outdated, said.healthy) == ("progressing", 1, 1)


@given(
    counters=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    owner=st.integers(0, 6),
    limit=st.integers(1, 3),
)
def test_a_restart_of_all_ends_with_one_for_each_pod_behind_and_keeps_the_floor(
    counters: list[int], owner: int, limit: int
) -> None:
    """Each turn restarts some; those are not available until the next turn but one."""
    rc = controller(len(counters), max_unavailable=limit, restart=owner)
    pods = {f"n{number}": pod(restart=counter) for number, counter in enumerate(counters)}
    turns = list[str]()
    for _ in itertools.repeat(None, 40):
        nodes = restarted(world(rc, pods))
        turns += nodes
        down = {node for node, state in pods.items() if not state.available} | set(nodes)
        assert len(down) <= limit
        for node in down:
            up = node not in nodes
            pods[node] = pod(restart=owner, intent=9, acted=9 if up else 5)
    assert sorted(turns) == [f"n{number}" for number, counter in enumerate(counters) if counter < owner]


# -- what is written -----------------------------------------------------------------------------
def change(plan: PodPlan, state: PodState, restart: int) -> Any:
    (found,) = planned(controller(1, restart=restart), plan, {("n1", POD): state}, NEW, keep_age=True)
    return found


PLACE = (("n1", POD),)


def test_a_restart_changes_the_intents_counter_alone() -> None:
    found = change(PodPlan(replacements=PLACE), pod(at=5.0), 3)
    assert (found.action, found.intent) == ("restart", Intent(SHA, RC, 3))
    assert (found.pod.manifest, found.pod.at) == (SHA, 5.0)


def test_no_write_lowers_a_counter() -> None:
    assert change(PodPlan(replacements=PLACE), pod(manifest="b" * 64, restart=8), 3).intent.restart == 8
    assert wanted(controller(1, restart=3), Stored("i", Intent(SHA, RC, 8), 1, b"")).restart == 8


def test_a_repair_restarts_nothing() -> None:
    altered = msgspec.structs.replace(pod(), intent=Stored("i", Intent("b" * 64, RC, 2), 5, b""))
    assert change(PodPlan(repairs=PLACE), altered, 3).intent == Intent(SHA, RC, 2)
    assert change(PodPlan(repairs=PLACE), msgspec.structs.replace(pod(), intent=None), 3).intent.restart == 3


def test_fields_that_a_newer_version_wrote_survive_a_restart() -> None:
    state = pod()
    assert state.intent is not None
    raw = msgspec.json.encode({"manifest": SHA, "owner": RC, "later": {"a": 1}})
    intent = Stored("i", state.intent.record, 5, raw)
    pods = Stored("p", state.pod.record, 4, msgspec.json.encode({"manifest": SHA, "x-team": "red"}))
    found = change(PodPlan(replacements=PLACE), PodState(pods, intent, None), 1)
    written = [
        msgspec.json.decode(operation.value)
        for operation in group(NodeChanges((found,)), RC, Keys()).operations
        if operation.value
    ]
    assert [(one.get("later"), one.get("x-team")) for one in written] == [(None, "red"), ({"a": 1}, None)]
