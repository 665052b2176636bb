"""Every list of farms tells of one that takes no items yet, or none any more."""

from __future__ import annotations

import pytest

from farmd.cli import output
from farmd.cli.farm import FleetView, lines
from farmd.overview import FarmRow
from farmd.tables import nodes
from farmd.web.item_lists import FarmList
from store.farms import Member
from tests.people import person


@pytest.mark.parametrize(
    ("said", "state"), [({}, "ready"), ({"starting": True}, "starting"), ({"draining": True}, "draining")]
)
async def test_the_page_the_table_and_top_tell_the_same_state_of_a_farm(
    said: dict[str, bool], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = FarmRow(member=Member(id="one", version="1", **said))  # type: ignore[arg-type]
    monkeypatch.setattr(FarmList, "rows", lambda _: [row])
    page = FarmList.__new__(FarmList)
    async with person() as call:
        described = await page.described(call, "one")
    cells = [column.text(row) for column in nodes.farm_table([row], 0.0).columns if column.title == "STATE"]
    assert ([each.state for each in page.made()], described.state, cells) == ([state], state, [state])
    (line,) = [
        each
        for each in lines(FleetView(0.0, [row], [], {}, {}, (), []), output.lines)
        if each.startswith("one ")
    ]
    assert line.split()[1] == state
