"""A worker's crash changes what is recorded of crashes, and nothing else of its durable state (R10)."""

from __future__ import annotations

from store import codec
from store.locks import Claim
from store.sessions import Session
from store.work import Work
from tests.toys import KEYS, Farms


async def crash(claim: Claim, session: Session) -> None:
    raise RuntimeError("boom")


async def test_r10_a_crash_leaves_the_rest_of_the_state_alone() -> None:
    farms = Farms()
    await farms.set_up()
    try:
        (item,) = await farms.add()
        before = Work(lost_since=5.0, absent_since=3.0, transfer_failures=2)
        value = codec.encode(before)[:-1] + b',"from_the_future":1}'
        await farms.client.put(KEYS.work("rcs", item), value)
        farm = await farms.start("a")
        farm.kind.does[item] = crash
        await farms.clock.advance(2)
        entry = await farms.client.read(KEYS.work("rcs", item))
        assert entry is not None
        work = codec.decode(Work, entry.value, entry.key)
        assert work.crashes > 0
        assert (work.lost_since, work.absent_since, work.transfer_failures) == (5.0, 3.0, 2)
        assert b'"from_the_future":1' in entry.value
    finally:
        await farms.close()
