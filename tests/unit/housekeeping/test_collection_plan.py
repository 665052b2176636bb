"""What happens to a manifest, as a table: flags, references, age and what this worker saw itself (R24)."""

from __future__ import annotations

import pytest

from farmd.housekeeping.facts import PATIENCE_SECONDS, Body, Sighting
from farmd.housekeeping.plan import sort_out

NOW, MONO, AGE = 10_000, 500.0, 1_000.0
OLD = NOW - 2_000
RIPE = Sighting(7, MONO - PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("flags", "referenced", "sighting", "expected"),
    [
        (0, False, None, "condemn"),
        (0, True, None, ""),
        (OLD, True, RIPE, "absolve"),
        (OLD, False, RIPE, "collect"),
        (OLD, False, None, ""),
        (OLD, False, Sighting(6, 0.0), ""),
        (OLD, False, Sighting(7, MONO - PATIENCE_SECONDS + 1), ""),
        (NOW - 999, False, RIPE, ""),
        (NOW - 1_000, False, RIPE, "collect"),
        (NOW + 200, False, RIPE, ""),
        (NOW + 301, False, RIPE, "condemn"),
    ],
)
def test_r24_what_becomes_of_a_manifest(
    flags: int, referenced: bool, sighting: Sighting | None, expected: str
) -> None:
    body = Body("ab", 7, flags, b"{}")
    plan = sort_out(
        [body],
        {"ab"} if referenced else set(),
        {"ab": sighting} if sighting else {},
        now=NOW,
        mono=MONO,
        age=AGE,
    )
    found = [name for name in ("condemn", "absolve", "collect") if getattr(plan, name)]
    assert found == ([expected] if expected else [])
