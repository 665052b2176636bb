"""The metrics name the owners that fall short, few at a time, and forget them once they do not."""

from __future__ import annotations

from farmd.work.owner import MOST, Shortfalls
from tests.recorders import CountingRecorder


def named(recorder: CountingRecorder) -> dict[str, tuple[float, float]]:
    """Available and desired pods of the exported owners."""
    values = recorder.values
    return {
        key[2]: (value, values["farmd_owner_desired_pods", *key[1:]])
        for key, value in values.items()
        if key[0] == "farmd_owner_available_pods"
    }


def test_only_owners_that_fall_short_are_named() -> None:
    recorder, shortfalls = CountingRecorder(), Shortfalls("rcs")
    for item, name, available in (("1", "web", 0), ("2", "api", 3), ("3", "db", 4)):
        shortfalls.see(item, name, 4, available)
    shortfalls.publish(recorder)
    assert named(recorder) == {"web": (0, 4), "api": (3, 4)}
    assert recorder.values["farmd_owners_short", "rcs"] == 2
    shortfalls.see("2", "api", 4, 4)
    shortfalls.forget("1")
    shortfalls.publish(recorder)
    assert named(recorder) == {}
    assert recorder.values["farmd_owners_short", "rcs"] == 0


def test_of_a_failure_of_all_the_worst_are_named_and_all_are_counted() -> None:
    recorder, shortfalls = CountingRecorder(), Shortfalls("rcs")
    for number in range(10_000):
        shortfalls.see(str(number), f"rc-{number:05}", 10, 9)
    shortfalls.see("a", "lacks-many", 100, 1)
    shortfalls.see("b", "serves-nothing", 1, 0)
    shortfalls.publish(recorder)
    assert len(named(recorder)) == MOST
    assert {"lacks-many", "serves-nothing"} < named(recorder).keys()
    assert recorder.values["farmd_owners_short", "rcs"] == 10_002
    shortfalls.forget("b")
    shortfalls.publish(recorder)
    assert len(named(recorder)) == MOST
    assert "serves-nothing" not in named(recorder)
