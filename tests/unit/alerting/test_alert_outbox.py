"""One incident, one message (W22), whatever a worker repeats; and each message until it has arrived."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from alerting.alert import Alert
from alerting.outbox import FIRST_PAUSE, LONGEST_PAUSE, Outbox
from tests.still_clock import StillClock

LOW = Alert(summary="not enough nodes", incident_key="rc1")
HIGH = Alert(summary="not enough nodes", incident_key="rc1", urgency="high")
OTHER = Alert(summary="not enough nodes", incident_key="rc2")


def send(outbox: Outbox, *, fails: bool = False, refused: bool = False) -> list[tuple[str, str]]:
    """Send what is due, until nothing is; returns keys and states."""
    sent = []
    while (incident := outbox.take()) is not None:
        message = incident.message()
        sent.append((message.incident_key, message.state))
        if fails or refused:
            outbox.failed(incident, refused=refused)
        else:
            outbox.delivered(incident, message)
    return sent


def test_w22_a_repeated_alert_is_news_once_until_the_resend_interval_is_over() -> None:
    clock = StillClock()
    outbox = Outbox(clock, resend=600)
    told = []
    for _ in range(50):
        outbox.fire(LOW)
        told.append(send(outbox))
        clock.seconds += 30
    assert [at * 30 for at, sent in enumerate(told) if sent] == [0, 600, 1200]


def test_each_message_tells_when_the_incident_began() -> None:
    clock = StillClock(1000.0)
    outbox = Outbox(clock, resend=600)
    told = []
    for step in range(3):
        outbox.fire(LOW) if step < 2 else outbox.resolve("rc1")
        incident = outbox.take()
        assert incident is not None
        told.append(incident.message().since)
        outbox.delivered(incident, incident.message())
        clock.seconds += 600
    outbox.fire(LOW)
    incident = outbox.take()
    assert incident is not None
    assert [*told, incident.message().since] == [1000.0, 1000.0, 1000.0, 2800.0]


def test_a_rise_in_urgency_is_news_and_a_fall_is_not() -> None:
    outbox = Outbox(StillClock())
    news = []
    for alert in (LOW, HIGH, HIGH, LOW):
        news.append(outbox.fire(alert))
        send(outbox)
    assert news == [True, True, False, False]


def test_only_what_fired_is_resolved_and_only_once() -> None:
    outbox = Outbox(StillClock())
    outbox.resolve("rc1")
    assert send(outbox) == []
    outbox.fire(LOW)
    outbox.fire(OTHER)
    assert send(outbox) == [("rc1", "firing"), ("rc2", "firing")]
    outbox.resolve("rc1")
    outbox.resolve("rc1")
    assert send(outbox) == [("rc1", "resolved")]
    outbox.resolve("rc1")
    assert send(outbox) == []
    assert outbox.fire(LOW)


def test_what_began_and_ended_before_anybody_was_told_is_told_in_order() -> None:
    outbox = Outbox(StillClock())
    outbox.fire(LOW)
    outbox.resolve("rc1")
    assert send(outbox) == [("rc1", "firing"), ("rc1", "resolved")]
    assert len(outbox) == 0


def test_an_end_that_does_not_arrive_is_tried_again_with_a_growing_pause() -> None:
    clock = StillClock()
    outbox = Outbox(clock)
    outbox.fire(LOW)
    send(outbox)
    outbox.resolve("rc1")
    tried = []
    for second in range(1000):
        if send(outbox, fails=True):
            tried.append(second)
        assert outbox.owes("rc1")
        clock.seconds += 1
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert max(pauses) <= LONGEST_PAUSE
    clock.seconds += LONGEST_PAUSE
    assert send(outbox) == [("rc1", "resolved")]
    assert not outbox.owes("rc1")
    assert len(outbox) == 0


def test_messages_that_a_later_one_has_overtaken_are_left_out() -> None:
    clock = StillClock()
    outbox = Outbox(clock)
    outbox.fire(LOW)
    send(outbox, fails=True)
    outbox.resolve("rc1")
    clock.seconds += LONGEST_PAUSE
    assert send(outbox, fails=True) == [("rc1", "resolved")]
    outbox.fire(LOW)
    clock.seconds += LONGEST_PAUSE
    assert send(outbox) == [("rc1", "firing")]
    assert outbox.going_on() == [LOW]


def test_what_happens_while_a_message_is_under_way_follows_it() -> None:
    outbox = Outbox(StillClock())
    outbox.fire(LOW)
    beginning = outbox.take()
    assert beginning is not None
    outbox.resolve("rc1")
    outbox.delivered(beginning, LOW)
    end = outbox.take()
    assert end is not None
    assert end.message() == replace(LOW.resolved(), since=1000.0)
    outbox.fire(LOW)
    outbox.resolve("rc1")
    outbox.fire(LOW)
    outbox.delivered(end, LOW.resolved())
    assert send(outbox) == [("rc1", "firing")]


def test_a_sink_that_refused_to_hear_of_an_incident_is_owed_no_end() -> None:
    outbox = Outbox(StillClock())
    outbox.fire(LOW)
    assert send(outbox, refused=True) == [("rc1", "firing")]
    outbox.resolve("rc1")
    assert len(outbox) == 0


def test_a_receiver_that_is_back_gets_all_that_waits_for_it_at_once() -> None:
    outbox = Outbox(StillClock())
    outbox.fire(LOW)
    send(outbox, fails=True)
    outbox.fire(OTHER)
    assert send(outbox) == [("rc2", "firing"), ("rc1", "firing")]


def test_memory_is_bounded_and_forgets_the_longest_silent_incident() -> None:
    outbox = Outbox(StillClock(), capacity=2)
    one, two, three = (Alert(summary="s", incident_key=key) for key in ("one", "two", "three"))
    outbox.fire(one)
    outbox.fire(two)
    outbox.fire(one)  # a repeat counts as a sign of life
    assert outbox.overflow() is None
    outbox.fire(three)
    assert outbox.overflow() == two
    assert send(outbox) == [("one", "firing"), ("three", "firing")]


def test_the_failure_of_an_old_message_does_not_touch_a_newer_incident() -> None:
    outbox = Outbox(StillClock())
    outbox.fire(LOW)
    old = outbox.take()
    assert old is not None
    outbox.forget("rc1")
    outbox.fire(HIGH)
    outbox.failed(old, refused=False)
    assert send(outbox) == [("rc1", "firing")]
    assert outbox.going_on() == [HIGH]
