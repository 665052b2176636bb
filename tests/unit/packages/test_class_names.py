"""A class name stands in at most two packages, unless it is meant: one word means one thing."""

from __future__ import annotations

from pathlib import Path

from tests.figures import many_names, modules

ROOM = "the same part of every kind of work"
WORD = "the word of manifests, compose files and the scheduler for one thing"
MEANT = {
    "Facts": "what a reader hands to the worker, " + ROOM,
    "Need": "the fact that a decision lacks, " + ROOM,
    "Plan": "what a decision says, " + ROOM,
    "Reader": "it reads the facts, " + ROOM,
    "Snapshot": "what a decision is made from, " + ROOM,
    "Placement": WORD,
    "Secret": WORD,
    "Volume": WORD,
}


def test_a_class_name_in_more_than_two_packages_is_meant() -> None:
    found = many_names(modules(Path(__file__).parents[3]))
    assert found.keys() == MEANT.keys(), {name: found[name] for name in found.keys() - MEANT.keys()}
