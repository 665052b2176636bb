"""What the page of a job tells of its run."""

from __future__ import annotations

from farmd.tables.jobs import besides, facts
from store.jobs import Job, Run, SlotRun
from tests.people import KEYS, person


async def test_a_run_that_does_not_decode_is_told_in_its_place_and_hides_nothing_else() -> None:
    job = Job(id="00aa00aa00aa00aa", name="sum", types=[])
    async with person() as call:
        await call.client.put(KEYS.record("runs", job.id), b"{")
        told, tables, *_ = await besides(call, job)
    assert [name for name, _ in told] == ["Attempt"]
    assert told[0][1].startswith(f"unknown: {KEYS.record('runs', job.id)}: ")
    assert told[0][1].endswith("; farmctl doctor shows how to repair it")
    assert tables == {}


def test_slots_that_were_tried_again_are_told_once_those_that_failed_last() -> None:
    job = Job(id="00aa00aa00aa00aa", name="sum", types=[])
    slots = {str(index): SlotRun(1, float(index)) for index in range(60)}
    told, tables = facts(job, Run(slots={"main": slots}), 100.0)
    assert [name for name, _ in told] == ["Attempt"]
    ((title, table),) = tables.items()
    assert title == "Tried again (60 slots, the last 50)"
    assert [row.slot for row in table.rows] == [f"main/{index}" for index in range(10, 60)]
