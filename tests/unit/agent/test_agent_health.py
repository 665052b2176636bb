"""Thresholds of checks, and damping: what is shown is true, late at most, and never too good."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.agent.health import Damper, HealthRun, Spell, judge, pause
from store.manifests import HealthCheck
from store.reality import Health, HealthState

P: HealthState = "passing"
C: HealthState = "critical"
U: HealthState = "unknown"


def states(check: HealthCheck, answers: str, every: float | None = None) -> list[str]:
    """The states after each answer: ``+`` is good, ``-`` bad, ``every`` seconds apart."""
    verdict, age, found = HealthRun(), 0.0, []
    for answer in answers:
        age += every if every is not None else check.interval
        verdict = judge(check, verdict, answer == "+", "said so", age=age)
        found.append(verdict.state[0])
    return found


@pytest.mark.parametrize(
    ("passes", "failures", "answers", "expected"),
    [
        (1, 3, "+", "p"),
        (2, 3, "++", "up"),
        (2, 3, "+-++", "uuup"),
        (1, 3, "---", "uuc"),
        (1, 3, "--+---", "uupppc"),
        (1, 1, "-+-", "cpc"),
        (2, 2, "--+-++", "ucccc" + "p"),
        (1, 3, "---+", "uucp"),
    ],
)
def test_thresholds(passes: int, failures: int, answers: str, expected: str) -> None:
    check = HealthCheck(type="tcp", port="a", passes=passes, failures=failures)
    assert "".join(states(check, answers)) == expected


def test_bad_answers_do_not_count_during_the_start_period() -> None:
    check = HealthCheck(type="tcp", port="a", failures=2, interval=1, start_period=5)
    assert "".join(states(check, "------")) == "uuuuuc"


def test_quick_checks_before_the_first_verdict_count_as_bad_only_once_an_interval() -> None:
    check = HealthCheck(type="tcp", port="a", failures=2, interval=2)
    assert "".join(states(check, "-----", every=0.5)) == "uuuuc"


def test_checks_are_quick_until_the_first_verdict() -> None:
    check = HealthCheck(type="tcp", port="a", interval=10)
    assert pause(check, HealthRun()) < pause(check, HealthRun("critical")) == 10


def shown(states_: str, *, bucket: float, step: float = 0.0) -> str:
    names: dict[str, HealthState] = {"P": P, "C": C, "U": U}
    damper = Damper(0.0, bucket=bucket, refill=4 / 60)
    damper.begin(Health("unknown", 0.0, ""))
    found = []
    for number, letter in enumerate(states_):
        health = Health(names[letter], float(number), f"reason {letter}")
        found.append(damper.offer(health, number * step).state[0].upper())
    return "".join(found)


@pytest.mark.parametrize(
    ("bucket", "given_states", "expected"),
    [
        (100000, "PCPC", "PCPC"),
        (4, "PCPC", "PCPC"),
        (4, "PCPCPCPC", "PCPCCCCC"),
        (2, "PCPC", "PCCC"),
        (3, "PCPC", "PCCC"),
    ],
)
def test_w24_flaps_are_limited_and_end_on_the_bad_side(
    bucket: float, given_states: str, expected: str
) -> None:
    assert shown(given_states, bucket=bucket) == expected


def test_w24_what_was_held_back_is_shown_with_state_and_reason() -> None:
    damper = Damper(0.0, bucket=2, refill=0.1)
    damper.begin(Health("passing", 0.0, "ok"))
    damper.offer(Health("critical", 1.0, "HTTP 500"), 0.0)
    damper.offer(Health("passing", 2.0, "ok"), 0.0)
    damper.offer(Health("critical", 3.0, "HTTP 500"), 0.0)
    held = damper.offer(Health("passing", 4.0, "HTTP 200"), 0.0)
    assert held.state == "critical"
    wait = damper.retry_in()
    assert math.isfinite(wait)
    now = damper.offer(Health("passing", 4.0, "HTTP 200"), wait)
    assert (now.state, now.since) == ("passing", 4.0)
    assert now.reason == "flapping, 3 changes since the last shown; HTTP 200"
    assert damper.retry_in() == math.inf


def test_r22_a_new_start_is_shown_at_once_even_with_an_empty_bucket() -> None:
    damper = Damper(0.0, bucket=0)
    damper.begin(Health("passing", 5.0, ""))
    assert damper.published == Health("passing", 5.0, "")


@given(st.lists(st.tuples(st.sampled_from([P, C, U]), st.floats(0, 20)), max_size=120))
def test_w24_nothing_is_shown_as_passing_for_lack_of_tokens_and_writes_are_limited(
    changes: list[tuple[HealthState, float]],
) -> None:
    damper, now, writes = Damper(0.0, bucket=4, refill=4 / 60), 0.0, 0
    damper.begin(Health("unknown", 0.0, ""))
    for state, later in changes:
        now += later
        before = damper.published
        after = damper.offer(Health(state, now, state), now)
        writes += after != before
        assert state == "passing" or after.state != "passing"
        assert after.state == state or math.isfinite(damper.retry_in())
    assert writes <= 4 + now * 4 / 60 + 1


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("1c 5p 9c", [1, 5, 1]),
        ("1c 5p 9c 12p 40c", [1, 5, 1, 12, 1]),
        ("1c 5p 65c", [1, 5, 65]),
        ("1p 5c", [1, 5]),
        ("1c 5p 9c 12p 90c 95p 99c", [1, 5, 1, 12, 90, 95, 90]),
    ],
)
def test_w17_who_passes_for_a_moment_was_not_well_in_between(turns: str, expected: list[float]) -> None:
    spell, states = Spell(Health("unknown")), {"c": C, "p": P}
    found = []
    for turn in turns.split():
        at = float(turn[:-1])
        found.append(spell.turned(states[turn[-1]], now=at, mono=at + 86400.0, settle=60.0))
    assert found == expected


def test_w17_an_agent_that_starts_again_knows_since_when_a_pod_is_sick() -> None:
    spell = Spell(Health(C, 7.0))
    assert spell.turned(P, now=10.0, mono=10.0, settle=60.0) == 10.0
    assert spell.turned(C, now=11.0, mono=11.0, settle=60.0) == 7.0
