"""Reading the audit log: newest first, filtered, and no more hours than needed."""

from __future__ import annotations

from store.audit import Audit, AuditLogStore, AuditReader, Filter
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
