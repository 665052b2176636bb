"""What the page's lists tell of records whose status, or whose manager's record, cannot be gone by."""

from __future__ import annotations

from msgspec.structs import replace

from farmd.kinds import KINDS
from farmd.web.apps import AppList
from farmd.web.item_lists import NamedList
from store import codec
from tests.app_fleet import KEYS, app_fleet, rc


async def test_the_page_tells_no_reason_of_an_earlier_record_of_an_app() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=0), app="other")
        await fleet.reached(1, app="other")
        await fleet.apply(rc("web", replicas=0))
        await fleet.told("belongs to app other")
        shown = AppList(fleet.fleet.farms["f0"].farm, KINDS["apps"])
        assert "belongs to app other" in (await shown.described(fleet.call, "shop")).reason
        await fleet.fleet.end("f0")
        await fleet.say(repair=False)
        told = await shown.described(fleet.call, "shop")
        assert "belongs" not in told.reason
        assert not told.tables["Waited for"].rows


async def test_the_page_tells_why_what_manages_a_record_does_nothing() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=0))
        await fleet.reached(1)
        (record,) = (await fleet.records()).values()
        await fleet.call.client.put(KEYS.record("rollouts", "00aa"), b"{")
        managed = replace(record, managed_by="rollouts/00aa")
        await fleet.call.client.put(KEYS.record("rcs", record.id), codec.encode(managed))
        farm = fleet.fleet.farms["f0"].farm
        lists = {"rollouts": NamedList(farm, KINDS["rollouts"], {})}
        shown = NamedList(farm, KINDS["rcs"], lists)
        with shown.looking():
            await fleet.clock.advance(5)
            (row,) = shown.table([line.row for line in shown.lines()]).rows
        assert row.state == "blocked"
        assert row.reason.startswith("managed by rollouts/00aa, which does not decode: ")
