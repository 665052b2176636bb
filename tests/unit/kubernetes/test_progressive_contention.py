"""A tool that writes bounds of a stage again and again is told by its name; a person's write is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from farmd.kubernetes.knative.bounds import MOST_REWRITES, WINDOW_SECONDS, Contention
from farmd.kubernetes.knative.facts import Bounds, RevisionBounds
from farmd.kubernetes.knative.objects import MANAGER, MIN_SCALE
from store.times import rfc3339
from tests.knative_worlds import owned, revision

STAGE = [RevisionBounds("web-00001", Bounds(4, 4))]


def at(now: float, manager: str) -> Any:
    """The service at a moment at which that manager had written the bound last."""
    found = revision("web-00001", Bounds(10, 10))
    entry = owned(manager, "metadata", "annotations", MIN_SCALE, time=rfc3339(now))
    found = replace(found, metadata=replace(found.metadata, managed_fields=(entry,)))
    return SimpleNamespace(now=now, bounds_on_revisions=True, revisions={"web-00001": found}, autoscalers={})


def rewritten(times: int, manager: str = "keda") -> Contention:
    """What a worker knows whose bounds were written anew so often, once a minute."""
    found = Contention(0.0)
    found.note(at(0.0, "kubectl"), STAGE)
    for minute in range(1, times + 1):
        found.note(at(60.0 * minute, manager), STAGE)
    return found


def test_a_tool_that_writes_bounds_each_minute_is_named() -> None:
    found = rewritten(MOST_REWRITES)
    assert found.told(60.0 * MOST_REWRITES) == "the bounds of web-00001 are also written by keda"


def test_writes_of_farmd_itself_and_fewer_ones_of_others_are_no_contention() -> None:
    for found in (rewritten(MOST_REWRITES - 1), rewritten(5, MANAGER)):
        assert found.told(WINDOW_SECONDS) == ""


def test_a_write_that_is_seen_twice_counts_once() -> None:
    found = rewritten(1)
    for _ in range(5):
        found.note(at(60.0, "keda"), STAGE)
    assert found.told(WINDOW_SECONDS) == ""


def test_a_write_that_was_there_before_the_first_stage_does_not_count() -> None:
    found = Contention(0.0)
    for now, manager in ((0.0, "kubectl"), (0.0, "kubectl"), (60.0, "keda"), (120.0, "keda")):
        found.note(at(now, manager), STAGE)
    assert found.told(120.0) is None


def test_it_is_over_ten_minutes_after_the_last_writes() -> None:
    found = rewritten(MOST_REWRITES)
    assert found.told(60.0 * MOST_REWRITES + WINDOW_SECONDS - 120.0) == ""


def test_a_worker_that_just_took_over_says_neither_that_it_goes_on_nor_that_it_is_over() -> None:
    assert Contention(0.0).told(WINDOW_SECONDS - 1.0) is None
    assert Contention(0.0).told(WINDOW_SECONDS) == ""
