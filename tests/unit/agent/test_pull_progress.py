"""How far a pull is, from what engines say of its layers."""

from __future__ import annotations

from typing import Any

from farmd.agent.runtimes.container_images import TELL_SECONDS, PullProgress
from tests.still_clock import StillClock


def said(layer: str, status: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    detail = {"current": current, "total": total} if total else {}
    return {"id": layer, "status": status, "progressDetail": detail}


def test_people_hear_of_a_pull_at_once_and_then_now_and_then() -> None:
    clock, told = StillClock(), list[str]()
    progress = PullProgress("web:2", clock, told.append)
    assert told == ["pulling web:2"]
    progress.note({"status": "Pulling from web"})
    progress.note(said("a", "Downloading", 10_000_000, 40_000_000))
    assert len(told) == 1
    clock.seconds += TELL_SECONDS
    progress.note(said("b", "Downloading", 20_000_000, 80_000_000))
    progress.note(said("b", "Downloading", 30_000_000, 80_000_000))
    clock.seconds += TELL_SECONDS
    progress.note(said("a", "Download complete"))
    # Docker counts anew while it unpacks.
    clock.seconds += TELL_SECONDS
    progress.note(said("a", "Extracting", 5, 40_000_000))
    assert told[1:] == [
        "pulling web:2: 30 of 120 MB",
        "pulling web:2: 70 of 120 MB",
        "pulling web:2: 70 of 120 MB",
    ]


def test_what_an_engine_says_that_nobody_knows_is_passed_over() -> None:
    clock, told = StillClock(), list[str]()
    progress = PullProgress("web:2", clock, told.append)
    clock.seconds += TELL_SECONDS
    odd = said("a", "Downloading", 1, 2) | {"progressDetail": {"current": "1", "total": "2"}}
    for piece in ({}, {"id": 7, "progressDetail": None}, {"id": "a", "progressDetail": {"current": 3}}, odd):
        progress.note(piece)
    assert told == ["pulling web:2"]
