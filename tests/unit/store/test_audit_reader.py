"""Reading the audit log: newest first, filtered, and no more hours than needed."""

from __future__ import annotations

from store.audit import FEW, Audit, AuditLogStore, AuditReader, Filter
from store.entry import Page, RawEntry
from store.ports import KeyReader, Mode
from tests.people import KEYS, person

HOUR = 3600.0


async def write(call: object, at: float, **fields: str) -> None:
    log = AuditLogStore(KEYS, call.clock, call.ids)  # type: ignore[attr-defined]
    values = {"actor": "farm/a", "action": "rc.create", "kind": "rcs", "id": "ab12", **fields}
    await call.client.transaction([log.operation(Audit(at=at, **values))])  # type: ignore[attr-defined, arg-type]


async def test_newest_come_first_over_hours_and_no_more_than_asked() -> None:
    async with person() as call:
        start = call.clock.now()
        for step in range(6):
            await write(call, start + step * HOUR / 2, name=f"n{step}")
        reader = AuditReader(call.client, KEYS)
        assert [r.name for r in await reader.read(Filter(), 4)] == ["n5", "n4", "n3", "n2"]
        assert len(await reader.read(Filter(), 100)) == 6


async def test_filters_fit_all_their_fields() -> None:
    async with person() as call:
        start = call.clock.now()
        await write(call, start, name="one", actor="user/ada@desk")
        await write(call, start + 2 * HOUR, name="two", id="cd34", action="rc.delete")
        reader = AuditReader(call.client, KEYS)

        async def names(wanted: Filter) -> list[str]:
            return [record.name for record in await reader.read(wanted, 10)]

        assert await names(Filter(item="cd34")) == ["two"]
        assert await names(Filter(item="one")) == ["one"]
        assert await names(Filter(actor="user/ada@desk")) == ["one"]
        assert await names(Filter(action="rc.delete")) == ["two"]
        assert await names(Filter(action="delete")) == ["two"]
        assert await names(Filter(kind="nodes")) == []
        assert await names(Filter(since=start + HOUR)) == ["two"]
        assert await names(Filter(until=start + HOUR)) == ["one"]


async def test_a_corrupt_record_is_reported_and_hides_none() -> None:
    async with person() as call:
        await write(call, call.clock.now(), name="good")
        hour = (await AuditReader(call.client, KEYS).hours())[0]
        await call.client.put(KEYS.audit(hour, "zz"), b"{")
        reader = AuditReader(call.client, KEYS)
        assert [r.name for r in await reader.read(Filter(), 10)] == ["good"]
        assert len(reader.broken) == 1


async def test_of_an_hour_with_very_many_only_the_newest_are_read() -> None:
    async with person() as call:
        start, count = call.clock.now(), FEW + 200
        log = AuditLogStore(KEYS, call.clock, call.ids)
        records = [
            Audit(
                at=start + number / 50,
                actor="farm/a",
                action="rc.create",
                kind="rcs",
                id="ab",
                name=f"n{number}",
            )
            for number in range(count)
        ]
        for first in range(0, count, 50):
            await call.client.transaction([log.operation(each) for each in records[first : first + 50]])
        read = Counted(call.client)
        reader = AuditReader(read, KEYS)
        assert [r.name for r in await reader.read(Filter(), 12)] == [f"n{count - 1 - n}" for n in range(12)]
        assert read.entries <= 200
        before = Filter(until=records[100].at)
        assert [r.name for r in await reader.read(before, 30)] == [f"n{100 - n}" for n in range(30)]
        assert [r.name for r in await reader.read(Filter(item="n3"), 30)] == ["n3"]
        assert len(await reader.read(Filter(), 2000)) == count


class Counted:
    """Reads keys, and counts the entries that came."""

    def __init__(self, client: KeyReader) -> None:
        self._client, self.entries = client, 0
        self.read, self.keys = client.read, client.keys

    async def list(self, prefix: str, *, mode: Mode = "default", most: int = 0) -> Page[RawEntry]:
        page = await self._client.list(prefix, mode=mode, most=most)
        self.entries += len(page.items)
        return page
