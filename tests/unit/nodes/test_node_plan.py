"""What a node's worker decides, as tables: verdicts (R21), stages of a drain, what people are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.nodes.facts import Leftover, Snapshot
from farmd.nodes.plan import decide
from farmd.work.model import Blocked
from store.nodes import Drain, Node, NodeStatus
from store.work import Work

WEB, LOGS = Leftover("web", "c1"), Leftover("logs", "c2", system=True)
LOST = Work(lost_since=900.0, absent_since=840.0)


def snapshot(**fields: Any) -> Snapshot:
    base = {
        "node": Node(),
        "present": True,
        "work": Work(),
        "absent_for": None,
        "grace": 60.0,
        "frozen": None,
        "now": 1000.0,
        "farm": "a",
    }
    return Snapshot(**(base | fields))


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, ""),
        ({"present": False}, ""),  # absent, but this farm cannot tell for how long
        ({"present": False, "absent_for": 59.9}, ""),
        ({"present": False, "absent_for": 60.0}, "lost"),
        ({"present": False, "absent_for": 600.0, "frozen": "agents: many"}, ""),
        ({"present": False, "absent_for": 600.0, "work": LOST}, ""),
        ({"work": LOST}, "back"),
        ({"work": LOST, "frozen": "agents: many"}, "back"),
        ({"present": False, "absent_for": 60.0, "broken": "does not decode", "node": None}, "lost"),
    ],
)
def test_r21_verdicts(fields: dict[str, Any], verdict: str) -> None:
    assert decide(snapshot(**fields)).verdict == verdict


def test_r18_a_verdict_that_is_due_waits_for_the_thaw_and_says_so() -> None:
    plan = decide(snapshot(present=False, absent_for=60.0, frozen="agents: many"))
    assert (plan.verdict, plan.blocked) == ("", Blocked("frozen", "frozen: agents: many"))


@pytest.mark.parametrize(
    ("drain", "left", "expected"),
    [
        (Drain(), (WEB, LOGS), None),
        (Drain(), (LOGS,), Drain("system")),
        (Drain(), (), Drain("done")),
        (Drain("system"), (LOGS,), None),
        (Drain("system"), (), Drain("done")),
        (Drain("system"), (WEB,), None),  # somebody put one there: it has to leave, too
        (Drain("done"), (), None),
        (Drain(), None, None),  # nothing was proven
        (Drain(deadline=999.0), (WEB,), Drain(deadline=999.0, overdue=True)),
        (Drain(deadline=1001.0), (WEB,), None),
        (Drain(deadline=999.0), (), Drain("done", deadline=999.0)),
        (Drain(deadline=999.0), (LOGS,), Drain("system", deadline=999.0, overdue=True)),
        (Drain(deadline=999.0, overdue=True), (WEB,), None),
    ],
)
def test_stages_of_a_drain(drain: Drain, left: tuple[Leftover, ...] | None, expected: Drain | None) -> None:
    assert decide(snapshot(node=Node(drain=drain), left=left)).drain == expected


@pytest.mark.parametrize(
    ("drain", "again"),
    [
        (Drain(), 5.0),
        (Drain(deadline=1002.0), 2.0),
        (Drain(deadline=5000.0), 5.0),
        (Drain(deadline=1.0, overdue=True), 5.0),
        (Drain("done", deadline=1.0), None),
        (None, None),
    ],
)
def test_only_a_drain_that_waits_owns_a_timer(drain: Drain | None, again: float | None) -> None:
    left = (WEB,) if drain is not None else None
    assert decide(snapshot(node=Node(drain=drain), left=left)).after == again


@pytest.mark.parametrize(
    ("drain", "blocked"),
    [
        (Drain(deadline=999.0), "overdue"),
        (Drain(deadline=999.0, overdue=True), "overdue"),
        (Drain(deadline=1001.0), ""),
        (Drain("done", deadline=999.0, overdue=True), ""),
    ],
)
def test_a_drain_past_its_deadline_is_blocked(drain: Drain, blocked: str) -> None:
    plan = decide(snapshot(node=Node(drain=drain), left=(WEB,)))
    assert (plan.blocked.code if plan.blocked else "") == blocked


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, None),
        ({"present": False, "absent_for": 4.9}, None),
        ({"present": False, "absent_for": 5.0}, "absent"),
        ({"present": False, "absent_for": 5.0, "frozen": "agents: many"}, None),
        ({"present": False, "absent_for": 60.0}, "lost"),
        ({"present": False, "work": LOST}, "lost"),
        ({"work": LOST}, None),
        ({"node": Node(drain=Drain()), "left": (WEB,)}, "draining"),
        ({"node": Node(drain=Drain()), "left": ()}, "drained"),
        ({"node": Node(drain=Drain()), "left": (WEB,), "present": False, "work": LOST}, "draining"),
        ({"node": None, "broken": "does not decode"}, "blocked"),
    ],
)
def test_what_people_are_told(fields: dict[str, Any], state: str | None) -> None:
    status = decide(snapshot(**fields)).status
    assert (status.state if status is not None else None) == state


def test_an_absence_that_goes_on_is_no_news() -> None:
    first = decide(snapshot(present=False, absent_for=6.0)).status
    assert first is not None
    second = decide(snapshot(present=False, absent_for=7.1, now=1001.0, status=first)).status
    assert second == first


def test_a_status_says_since_when_its_state_is_what_it_is() -> None:
    before = NodeStatus(state="draining", since=500.0, left=2)
    same = decide(snapshot(node=Node(drain=Drain()), left=(WEB,), status=before)).status
    other = decide(snapshot(node=Node(drain=Drain()), left=(), status=before)).status
    assert same is not None
    assert other is not None
    assert (same.since, other.since) == (500.0, 1000.0)


_leftovers = st.lists(st.builds(Leftover, st.text(), st.text(), st.booleans()), max_size=3).map(tuple)
_drains = st.builds(
    Drain,
    st.sampled_from(["pods", "system", "done"]),
    deadline=st.sampled_from([0.0, 900.0, 1100.0]),
    force=st.booleans(),
    overdue=st.booleans(),
)


@given(drain=_drains, left=st.none() | _leftovers, frozen=st.none() | st.just("x"))
def test_a_drain_never_goes_back_and_system_pods_always_leave_last(
    drain: Drain, left: tuple[Leftover, ...] | None, frozen: str | None
) -> None:
    order = ["pods", "system", "done"]
    after = decide(snapshot(node=Node(drain=drain), left=left, frozen=frozen)).drain or drain
    assert order.index(after.stage) >= order.index(drain.stage)
    assert after.overdue >= drain.overdue
    if after.stage != drain.stage:
        assert left is not None
        assert all(pod.system for pod in left)
        assert after.stage == "system" or not left


@given(
    absent=st.none() | st.floats(0, 1e6),
    frozen=st.none() | st.just("x"),
    present=st.booleans(),
    lost=st.booleans(),
)
def test_r21_nobody_is_given_up_without_a_grace_period_that_was_seen(
    absent: float | None, frozen: str | None, present: bool, lost: bool
) -> None:
    work = LOST if lost else Work()
    plan = decide(snapshot(absent_for=absent, frozen=frozen, present=present, work=work))
    if plan.verdict == "lost":
        assert not present
        assert not lost
        assert frozen is None
        assert absent is not None
        assert absent >= 60.0
