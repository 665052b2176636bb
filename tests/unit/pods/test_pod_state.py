"""The one definition of healthy, available and down (R21, R22), as tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farmd.pods.state import PodState, foreign, settled, settling
from store.entry import Stored
from store.pods import Pod
from store.reality import Exit, Glance, Health, Intent, Reality, dated, glance

SHA, NEWER, RC = "a" * 64, "b" * 64, "00aa"
GOOD = Glance(SHA, RC, "running", 1.0, "passing", intent=7, since=1.0)


def pod(reality: Glance | None = GOOD, *, manifest: str = SHA, owner: str = RC, **fields: Any) -> PodState:
    """A pod whose intent has index 7; ``owner`` is its intent's."""
    intent = {"intent": Stored("i", Intent(manifest, owner), 7, b"")}
    return PodState(Stored("p", Pod(manifest), 5, b""), reality=reality, **(intent | fields))


def seen(**fields: Any) -> Glance:
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    ("case", "state", "healthy", "available", "down"),
    [
        ("it passes", pod(), True, True, False),
        ("it passes, not for long enough", pod(settles_in=0.5), True, False, False),
        ("it passed for long enough", pod(settles_in=-3.0), True, True, False),
        ("it fails", pod(seen(state="critical")), False, False, True),
        ("a warning", pod(seen(state="warning")), False, False, True),
        ("not checked yet", pod(seen(state="unknown")), False, False, True),
        ("between two starts", pod(seen(phase="backoff")), False, False, True),
        ("it runs another manifest", pod(seen(manifest=NEWER)), False, False, True),
        ("R22: its reality is missing or does not decode", pod(None), False, False, False),
        ("R22: an earlier start", pod(seen(intent=6)), False, False, False),
        ("its intent is gone", pod(intent=None), False, False, False),
        ("R21: its agent is absent", pod(absent=True), False, False, False),
        ("R21: absent, and it failed", pod(seen(state="critical"), absent=True), False, False, False),
        ("its node is given up", pod(absent=True, lost=5.0), False, False, True),
        ("back, and still given up", pod(lost=5.0), False, False, True),
    ],
)
def test_r22_healthy_available_and_down(
    case: str, state: PodState, healthy: bool, available: bool, down: bool
) -> None:
    assert (state.healthy, state.available, state.down) == (healthy, available, down), case


@pytest.mark.parametrize(
    ("case", "now", "since"),
    [
        ("the same start, the same health", seen(), 10.0),
        ("its agent acted on another intent", seen(intent=9), 10.0),
        ("another start", seen(started=9.0, since=9.0), 50.0),
        ("another start, by a clock that was set back", seen(started=0.5, since=0.5), 50.0),
        ("it failed in between", seen(since=30.0), 50.0),
        ("it fails", seen(state="critical", since=30.0), 50.0),
        ("it ended", seen(phase="backoff", started=0.0), 50.0),
        ("another manifest", seen(manifest=NEWER), 50.0),
    ],
)
def test_r22_a_break_begins_the_count_anew_by_this_process_clock(
    case: str, now: Glance, since: float
) -> None:
    before = dated(GOOD, None, 10.0)
    assert before.seen == 10.0
    assert dated(now, before, 50.0).seen == since, case


def test_r22_what_agents_say_of_time_decides_nothing() -> None:
    """An agent whose clock is a day ahead and one that is a day behind are seen at the same moment."""
    for day in (86_400.0, -86_400.0):
        health = Health("passing", 1e9 + day)
        reality = Reality(manifest=SHA, owner=RC, started=1e9 + day, intent=7, health=health)
        assert dated(glance(reality), None, 10.0).seen == 10.0


def test_r29_a_farm_keeps_the_end_of_a_pod_that_is_done_and_the_ports_of_one_that_waits() -> None:
    ends = [Exit(1.0, 0), Exit(2.0, 3, "oom", "too much")]
    fields: dict[str, Any] = {"manifest": SHA, "exits": ends, "ports": {"job": 20011}, "restarts": 1}
    found = {phase: glance(Reality(phase=phase, **fields)) for phase in ("running", "held", "done")}  # type: ignore[arg-type]
    assert {phase: (each.ended, each.ports, each.restarts) for phase, each in found.items()} == {
        "running": (None, {}, 1),
        "held": (None, {"job": 20011}, 1),
        "done": (ends[1], {"job": 20011}, 1),
    }


def test_r23a_only_pods_that_settle_are_waited_for() -> None:
    waits = pod(settles_in=3.0)
    assert settling([pod(), pod(settles_in=-1.0), pod(absent=True, settles_in=2.0)]) is None
    assert settling([pod(settles_in=8.0), waits, pod(seen(state="critical"), settles_in=1.0)]) == 3.0
    assert all(state.available for state in settled({"a": waits, "b": pod()}).values())


def test_what_belongs_to_somebody_else_is_named() -> None:
    assert foreign(RC, {("n1", "web"): pod(), ("n2", "web"): pod(intent=None)}) == ""
    others = {("n2", "web"): pod(owner="ffff"), ("n3", "web"): pod(unreadable=True, intent=None)}
    assert foreign(RC, others) == "n2/web: its intent belongs to ffff"
    assert foreign(RC, {("n3", "web"): others["n3", "web"]}) == "n3/web: its intent does not decode"


@pytest.mark.parametrize(
    ("state", "outdated", "altered"),
    [
        (pod(), False, False),
        (pod(manifest=NEWER), True, False),
        (pod(intent=None), False, True),
        (pod(intent=Stored("i", Intent(NEWER, RC), 7, b"")), False, True),
        (pod(owner="ffff"), False, False),
        (pod(intent=None, unreadable=True), False, False),
    ],
)
def test_outdated_and_altered(state: PodState, outdated: bool, altered: bool) -> None:
    assert (state.outdated(SHA), state.altered(RC)) == (outdated, altered)
