"""Logs of several pods that are followed: merged by their times."""

from __future__ import annotations

from farmd.cli.logs import HELD_SECONDS, LONGEST_LINE, Merged
from tests.still_clock import StillClock


async def test_followed_lines_are_merged_by_time_and_held_for_a_moment_only() -> None:
    clock, shown = StillClock(), list[bytes]()
    merged = Merged(clock, shown.append)
    one, two = merged.of(b"n1/a: ", stamped=False), merged.of(b"n2/b: ", stamped=True)
    one(b"2026-01-02T03:04:05Z first\n2026-01-02T03:04:07Z th")
    two(b"2026-01-02T03:04:06Z second\n")
    merged.flush(HELD_SECONDS)
    assert shown == []
    await clock.sleep(HELD_SECONDS)
    one(b"ird\n")
    merged.flush(HELD_SECONDS)
    assert shown == [b"n1/a: first\nn2/b: 2026-01-02T03:04:06Z second\n"]
    merged.flush(0.0)
    assert shown[1:] == [b"n1/a: third\n"]


async def test_the_rest_of_a_long_line_stays_behind_it() -> None:
    shown = list[bytes]()
    merged = Merged(StillClock(), shown.append)
    write = merged.of(b"p: ", stamped=False)
    write(b"2026-01-02T03:04:05Z " + b"x" * LONGEST_LINE + b"y")
    write(b"rest of it\n2026-01-02T03:04:05Z next\n")
    merged.flush(0.0)
    assert b"".join(shown).split(b"\n")[1:] == [b"p: rest of it", b"p: next", b""]
