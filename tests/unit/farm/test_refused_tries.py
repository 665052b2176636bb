"""What is refused outside of Consul is tried less and less often, whatever wakes its worker, and one audit
record an hour counts the tries.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from farmd.housekeeping.kind import Housekeeping
from farmd.runtime.wake import Wake, wait
from farmd.work.model import Blocked, Outcome
from farmd.work.worker import Worker
from store.audit import AuditReader, Filter
from tests.house import House, house

LONGEST = 75


@dataclass(frozen=True)
class Wish:
    """A plan that is always there."""

    empty: bool = False
    blocked: Blocked | None = None
    after: float | None = None


class Refused(Worker[str, Wish]):
    """Tries what ``wanted`` says, which is refused unless it is ``allowed``; ``tried`` is when."""

    def __init__(self, of: House) -> None:
        super().__init__(Housekeeping(of.context), of.claim, of.session, Wake())
        self.wanted, self.allowed = "this", ""
        self.tried: list[float] = []

    async def read(self) -> str:
        return self.wanted

    def decide(self, snapshot: str) -> Wish:
        return Wish(empty=snapshot == self.allowed)

    async def act(self, snapshot: str, plan: Wish) -> Outcome:
        if (rest := self.resting(snapshot)) is not None:
            return rest
        self.tried.append(self.context.clock.now())
        return await self.count_refusal(snapshot, f"{snapshot} is refused", noun="thing", name="it")

    def describe(self, snapshot: str, plan: Wish) -> None:
        return None


@pytest.fixture
async def worker() -> Any:
    async with house() as found:
        refused = Refused(found)

        async def works() -> None:
            while await refused.run():
                await wait(refused.wake, found.clock, None)

        running = asyncio.create_task(works())
        yield refused, found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def seconds(many: int, worker: Refused, of: House) -> None:
    for _ in range(many):
        await of.clock.advance(1)
        worker.wake.set()


async def told(of: House) -> list[Any]:
    return list(await AuditReader(of.client, of.keys).read(Filter(action="thing.refused"), 1000))


async def test_tries_grow_rare_and_their_records_rarer(worker: tuple[Refused, House]) -> None:
    refused, of = worker
    await seconds(3600, refused, of)
    gaps = [later - sooner for sooner, later in zip(refused.tried, refused.tried[1:], strict=False)]
    assert max(gaps) <= LONGEST + 2
    assert min(gaps[8:]) >= 0.75 * 60
    found = await told(of)
    assert len(found) <= 2  # the hour may have turned
    last = found[0].after
    assert len(refused.tried) / 2 <= int(last["tries"]) <= len(refused.tried)
    assert last["first"] < last["last"]


async def test_another_plan_is_tried_at_once_and_one_that_got_through_ends_the_count(
    worker: tuple[Refused, House],
) -> None:
    refused, of = worker
    await seconds(300, refused, of)
    before, refused.wanted = len(refused.tried), "that"
    await seconds(2, refused, of)
    assert len(refused.tried) == before + 1
    refused.allowed = "that"
    await seconds(2, refused, of)
    refused.wanted = "this"
    await seconds(5, refused, of)
    assert len(refused.tried) >= before + 4  # the pause begins anew
    assert next(each.after["tries"] for each in await told(of)) in (1, 2, 4)
