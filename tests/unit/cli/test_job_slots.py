"""``job logs bert/worker/3``: what names no slot of the job is refused with what would."""

from __future__ import annotations

import pytest

from farmd.cli.job_run import _slot
from farmd.jobs.facts import Slot
from store.errors import InputInvalid
from store.jobs import Job, Type

JOB = Job(id="0a", name="bert", types=[Type(name="worker", manifest="m", replicas=3)])


def test_a_slot_is_a_type_and_an_index() -> None:
    assert _slot(JOB, "worker/2") == Slot("worker", 2)


@pytest.mark.parametrize("index", ["3", "-1", "two", "", "9" * 5000])
def test_another_index_is_refused_with_those_that_there_are(index: str) -> None:
    with pytest.raises(InputInvalid, match=r"slot: found index .*, expected 0 to 2"):
        _slot(JOB, f"worker/{index}")


def test_another_type_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputInvalid, match=r"expected TYPE/INDEX, of type worker"):
        _slot(JOB, "master/0")
