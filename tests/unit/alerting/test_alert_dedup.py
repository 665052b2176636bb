"""One incident, one message (W22), whatever a worker repeats."""

from __future__ import annotations

from alerting.alert import Alert
from alerting.dedup import Deduplicator
from tests.still_clock import StillClock

LOW = Alert(summary="not enough nodes", incident_key="rc1")
HIGH = Alert(summary="not enough nodes", incident_key="rc1", urgency="high")


def test_w22_a_repeated_alert_is_news_once_until_the_resend_interval_is_over() -> None:
    clock = StillClock()
    memory = Deduplicator(clock, resend=600)
    told = []
    for _ in range(50):
        told.append(memory.is_news(LOW))
        clock.seconds += 30
    assert [at * 30 for at, news in enumerate(told) if news] == [0, 600, 1200]


def test_a_rise_in_urgency_is_news_and_a_fall_is_not() -> None:
    memory = Deduplicator(StillClock())
    assert [memory.is_news(alert) for alert in (LOW, HIGH, HIGH, LOW)] == [True, True, False, False]


def test_other_incidents_are_not_confused() -> None:
    memory = Deduplicator(StillClock())
    assert memory.is_news(LOW)
    assert memory.is_news(Alert(summary="not enough nodes", incident_key="rc2"))


def test_only_what_fired_is_resolved_and_only_once() -> None:
    memory = Deduplicator(StillClock())
    assert memory.resolve("rc1") is None
    memory.is_news(LOW)
    assert memory.resolve("rc1") == LOW.resolved()
    assert memory.resolve("rc1") is None
    assert memory.is_news(LOW)


def test_memory_is_bounded_and_forgets_the_longest_silent_incident() -> None:
    memory = Deduplicator(StillClock(), capacity=2)
    one, two, three = (Alert(summary="s", incident_key=key) for key in ("one", "two", "three"))
    memory.is_news(one)
    memory.is_news(two)
    memory.is_news(one)  # a repeat counts as a sign of life
    memory.is_news(three)
    assert memory.open() == 2
    assert not memory.is_news(one)
    assert memory.is_news(two)


def test_what_was_not_delivered_is_news_again_and_can_still_be_resolved() -> None:
    memory = Deduplicator(StillClock())
    memory.is_news(LOW)
    memory.undo(LOW)
    assert memory.open() == 1
    assert memory.is_news(LOW)
    over = memory.resolve("rc1")
    assert over is not None
    memory.undo(over)
    assert memory.resolve("rc1") == over


def test_the_failure_of_an_old_message_does_not_touch_a_newer_incident() -> None:
    memory = Deduplicator(StillClock())
    memory.is_news(LOW)
    memory.resolve("rc1")
    newer = Alert(summary="again", incident_key="rc1")
    memory.is_news(newer)
    memory.undo(LOW)
    assert not memory.is_news(newer)
