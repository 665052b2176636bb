"""Locks that could not be freed or taken: errors of many batches leave nothing to the collector of cycles."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from farmd.farm.locking import Locks
from store.errors import NotRegistered, OutcomeUnknown, StoreError
from store.locks import Claim
from tests.garbage import garbage
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock
from tests.virtual import SeededIds

SAID = ("no answer", "the schema changed")


class Refuses:
    """A locker that does nothing but fail."""

    async def free(self, claims: list[Claim]) -> None:
        raise OutcomeUnknown(SAID[0])

    async def take(self, *_: Any) -> Any:
        raise NotRegistered(SAID[1])


@pytest.mark.parametrize("act", ["free", "take"])
async def test_an_error_of_locks_is_freed_without_the_collector(act: str) -> None:
    session: Any = SimpleNamespace(id="s", require=lambda: None)
    held: Any = SimpleNamespace(took=lambda _: None)
    locker: Any = Refuses()
    locks = Locks("rcs", session, "f1", locker, held, StillClock(), SeededIds(), CountingRecorder())
    claims = [Claim("rcs", f"i{n}", f"k{n}", "s", "n", n) for n in range(200)]
    with garbage() as left:
        with suppress(OutcomeUnknown, NotRegistered):
            await (locks.free(claims) if act == "free" else locks.take([each.item for each in claims], 1))
        await asyncio.sleep(0)  # until then the loop holds the answer that it just gave
    # What an earlier test of this process left to its own end is not of these locks.
    assert [each for each in left if isinstance(each, StoreError) and each.message in SAID] == []
