"""Replay is a function of records and their order alone; checkpoints change nothing about it (R25)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.housekeeping.plan import expired, window
from store import codec
from store.audit import Audit
from store.checkpoint import Chunk, chunks, replay
from store.errors import RecordInvalid
from store.pods import PodKey

PODS = [PodKey(owner, f"n{number}", "hello") for owner in ("ab01", "cd02") for number in range(4)]
pods = st.sampled_from(PODS)


def record(placed: list[PodKey], removed: list[PodKey], owner: str = "ab01") -> Audit:
    def text(pod: PodKey) -> str:
        place = f"{pod.node}/{pod.instance}"
        return place if pod.owner == owner else f"{pod.owner}/{place}"

    return Audit(
        at=0.0,
        actor="farm/a",
        action="pods",
        kind="rcs",
        id=owner,
        placed=[text(pod) for pod in placed],
        removed=[text(pod) for pod in removed],
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Audit, frozenset[PodKey]]]:
    """Records of changes that could happen, each with the pods that stand after it."""
    standing: frozenset[PodKey] = frozenset()
    made = []
    for _ in range(draw(st.integers(0, 25))):
        placed = draw(st.sets(pods, max_size=4)) - standing
        removed = draw(st.sets(pods, max_size=4)) & standing
        standing = (standing - removed) | placed
        made.append(
            (record(sorted(placed), sorted(removed), draw(st.sampled_from(["ab01", "cd02"]))), standing)
        )
    return made


@given(histories(), st.data())
def test_any_checkpoint_and_the_records_after_its_index_give_the_same_pods(
    history: list[tuple[Audit, frozenset[PodKey]]], data: st.DataObject
) -> None:
    truth = history[-1][1] if history else frozenset()
    records = {index: [made] for index, (made, _) in enumerate(history, 1)}
    assert replay((), records) == truth
    # Read at ``seen``; its index was taken before, so the records in between are replayed as well.
    seen = data.draw(st.integers(0, len(history)))
    index = data.draw(st.integers(0, seen))
    base = history[seen - 1][1] if seen else frozenset()
    later = {at: made for at, made in records.items() if at > index}
    assert replay(base, later) == truth


@given(st.sets(pods), st.integers(64, 400))
def test_chunks_are_within_their_size_and_lose_nothing(standing: set[PodKey], limit: int) -> None:
    found = set()
    for value in chunks(standing, limit):
        assert len(value) <= limit
        for owner, places in codec.decode(Chunk, value, "chunk").pods.items():
            found |= {PodKey(owner, *place.split("/")) for place in places}
    assert found == standing


@pytest.mark.parametrize("place", ["n1", "a/b/c/d", "n1/", ""])
def test_a_place_that_nobody_writes_is_an_error_and_not_a_guess(place: str) -> None:
    made = Audit(at=0.0, actor="a", action="x", kind="rcs", id="ab01", placed=[place])
    with pytest.raises(RecordInvalid, match="expected <owner>/<node>/<instance>"):
        replay((), {1: [made]})


def test_only_whole_hours_beyond_the_retention_expire() -> None:
    hours = ["1970-01-12T13", "1970-01-12T11", "1970-01-12T12", "checkpoint", "1970-01-12T10"]
    # 1,000,000 s is 13:46:40.
    assert expired(hours, now=1_000_000, retention=3600) == ["1970-01-12T10", "1970-01-12T11"]
    assert expired(hours, now=1_000_000, retention=10 * 3600) == []


@given(st.sets(st.text("abc", min_size=1, max_size=3), max_size=12), st.integers(1, 5))
def test_a_window_that_moves_on_reaches_everything(items: set[str], limit: int) -> None:
    reached: set[str] = set()
    cursor = ""
    for _ in range(-(-len(items) // limit)):
        chosen = window(items, cursor, limit)
        assert len(chosen) <= limit
        reached |= set(chosen)
        cursor = chosen[-1]
    assert reached == items
