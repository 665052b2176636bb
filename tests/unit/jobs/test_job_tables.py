"""What the page of a job tells of its run."""

from __future__ import annotations

from farmd.tables.jobs import besides
from store.jobs import Job
from tests.people import KEYS, person


async def test_a_run_that_does_not_decode_is_told_in_its_place_and_hides_nothing_else() -> None:
    job = Job(id="00aa00aa00aa00aa", name="sum", types=[])
    async with person() as call:
        await call.client.put(KEYS.record("runs", job.id), b"{")
        facts, tables = await besides(call, job)
    assert [name for name, _ in facts] == ["Attempt"]
    assert facts[0][1].startswith(f"{KEYS.record('runs', job.id)}: ")
    assert tables == {}
