"""Turns to move a pod: how many at once in the fleet, and who goes next (a waiting RC owns no timer)."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry

from farmd.cache.caches import Caches
from farmd.observe.progress import Progress
from farmd.observe.recorder import Metrics
from farmd.replication.facts import Moves
from store.keys import Keys
from store.work import Transfer, Work
from tests.virtual import VirtualClock, embedded_client

KEYS = Keys()


class Scene:
    """Two turns, and what other farms' workers note down."""

    def __init__(self) -> None:
        clock = VirtualClock()
        progress = Progress(clock, Metrics(CollectorRegistry()))
        self.caches = Caches(embedded_client(clock), KEYS, "c", clock, random.Random(1), progress)
        self.moves = Moves(self.caches, KEYS, 2)
        self.woken: list[str] = []
        self._index = 1

    def note(self, item: str, *, moving: bool) -> None:
        self._index += 1
        move = Transfer(id="t", old_node="a", old_instance="p", new_node="b", new_instance="p")
        key = KEYS.work("rcs", item)
        self.caches.work.wrote(key, Work(transfer=move if moving else None, crashes=1), self._index)
        self.caches.work.notify({key})

    def enter(self, item: str) -> bool:
        return self.moves.enter(item, lambda: self.woken.append(item))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_moves_of_all_farms_count(scene: Scene) -> None:
    scene.note("theirs", moving=True)
    assert scene.enter("a")
    assert not scene.enter("b")


def test_starts_that_are_not_noted_yet_count_too(scene: Scene) -> None:
    assert scene.enter("a")
    assert scene.enter("b")
    assert not scene.enter("c")
    assert scene.enter("a")


def test_the_end_of_a_move_wakes_the_next_in_line(scene: Scene) -> None:
    scene.note("x", moving=True)
    scene.note("y", moving=True)
    assert not scene.enter("a")
    assert not scene.enter("b")
    scene.moves.leave("a")
    scene.moves.leave("b")
    assert scene.woken == []
    scene.note("x", moving=False)
    assert scene.woken == ["a"]
    assert scene.enter("a")


def test_a_turn_that_is_not_taken_goes_to_the_next(scene: Scene) -> None:
    scene.note("x", moving=True)
    scene.note("y", moving=True)
    assert not scene.enter("a")
    assert not scene.enter("b")
    scene.note("x", moving=False)
    scene.moves.leave("a")
    assert scene.woken == ["a", "b"]


def test_a_worker_that_ended_waits_no_more(scene: Scene) -> None:
    scene.note("x", moving=True)
    scene.note("y", moving=True)
    assert not scene.enter("a")
    scene.moves.forget("a")
    scene.note("x", moving=False)
    assert scene.woken == []


def test_a_start_that_came_to_nothing_gives_its_turn_back(scene: Scene) -> None:
    assert scene.enter("a")
    assert scene.enter("b")
    assert not scene.enter("c")
    scene.moves.leave("a")
    assert scene.woken == ["c"]
