"""What the store keeps of objects of another system goes once they are gone since long, and no earlier."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from farmd.housekeeping import chores as chore
from farmd.housekeeping.facts import PATIENCE_SECONDS
from store import codec, operations
from store.jobs import JobStatus, Run
from tests.house import HOUR, House, house

STATUS_AGE, RUN_AGE = HOUR, 10 * HOUR
UID = "6f0c5b0e-0d4e-4f2c-9d57-3f1f6f0a1b2c"


async def left(home: House) -> set[str]:
    """The statuses and runs that are there, without the prefix."""
    trees = [home.keys.tree(name) for name in ("status", "runs")]
    pages = [await home.client.keys(tree) for tree in trees]
    return {key.removeprefix(home.keys.prefix) for page in pages for key in page.items if "/." not in key}


async def put(home: House, key: str, record: object) -> None:
    await home.client.put(key, codec.encode(record))


async def leavings(home: House) -> None:
    """A blocked status and a run of an earlier version."""
    await put(home, home.keys.status("kubejobs", UID), JobStatus(state="blocked", reason="no place"))
    await put(home, home.keys.record("runs", UID), Run(restarts=1))


@pytest.fixture
async def home(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(chore, "STATUS_AGE", STATUS_AGE)
    monkeypatch.setattr(chore, "RUN_AGE", RUN_AGE)
    async with house() as made:
        yield made


async def test_a_status_goes_after_a_day_and_a_run_without_source_after_thirty(home: House) -> None:
    await leavings(home)
    work = home.leavings()
    await work.round()
    await home.clock.advance(STATUS_AGE - 60)
    await work.round()
    assert await left(home) == {f"status/kubejobs/{UID}", f"runs/{UID}"}
    await home.clock.advance(60)
    await work.round()
    assert await left(home) == {f"runs/{UID}"}
    await home.clock.advance(RUN_AGE - STATUS_AGE)
    await work.round()
    assert await left(home) == set()


async def test_what_tells_of_living_items_and_of_other_jobs_stays(home: House) -> None:
    kept = {
        home.keys.status("jobs", "00000000000000aa"): JobStatus(state="blocked"),
        home.keys.record("runs", "00000000000000aa"): Run(restarts=1),
        home.keys.record("runs", UID): Run(restarts=1, source="prod/farmjobs/ml/bert"),
    }
    for key, record in kept.items():
        await put(home, key, record)
    work = home.leavings()
    await work.round()
    await home.clock.advance(2 * RUN_AGE)
    await work.round()
    assert await left(home) == {key.removeprefix(home.keys.prefix) for key in kept}


async def test_a_claim_absolves_what_was_condemned(home: House) -> None:
    await leavings(home)
    work = home.leavings()
    await work.round()
    await home.clock.advance(HOUR / 2)
    lock = home.keys.lock("kubejobs", UID)
    await home.client.put(lock, b"{}")
    await work.round()
    for key in (home.keys.status("kubejobs", UID), home.keys.record("runs", UID)):
        entry = await home.client.read(key)
        assert entry is not None
        assert entry.flags == 0
    await home.client.delete(lock)
    await work.round()
    await home.clock.advance(STATUS_AGE - 60)
    await work.round()
    assert len(await left(home)) == 2


async def test_a_claim_between_the_look_and_the_deletion_keeps_all(home: House) -> None:
    await leavings(home)
    work = home.leavings()
    await work.round()
    await home.clock.advance(RUN_AGE + PATIENCE_SECONDS)
    held = work._held

    async def claimed_late() -> set[str]:
        found = await held()
        await home.client.transaction([operations.put(home.keys.lock("kubejobs", UID), b"{}")])
        return found

    work._held = claimed_late  # type: ignore[method-assign]
    await work.round()
    assert await left(home) == {f"status/kubejobs/{UID}", f"runs/{UID}"}
