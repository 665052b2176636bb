"""A farm that falls away at exactly the k-th transaction of an app, for every k: another comes to its end.

The app makes, changes, adopts, rolls and collects at once, or fails and goes back; virtual time. What must
hold: the same end, nothing of others touched, and no object made twice.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from tests.app_fleet import KINDS, MARK, AppFleet, app_fleet, document, rc, spec
from tests.effort import first
from tests.node_farms import FATES, Fall

BEFORE = (
    rc("a", labels={"n": "1"}),
    rc("b"),
    rc("c"),
    rc("web", "--v1"),
    document("node", "n1", labels={"rack": "r1"}),
)
AFTER = (
    rc("a", labels={"n": "2"}),
    rc("new", wave=1),
    rc("web", "--v2", wave=1),
    rc("found", replicas=0),
    document("node", "n1", labels={"rack": "r2"}),
)
BAD = (rc("a", labels={"n": "3"}), rc("b"), rc("c"), rc("web", "--v1"), rc("worse", "--bad"))


async def prepared(fleet: AppFleet) -> None:
    """The first revision, and controllers of nobody's."""
    await fleet.apply(*BEFORE)
    await fleet.reached(1)
    for each in (spec("found", replicas=0), spec("foreign", replicas=0)):
        await commit(fleet.call, await RC.create(fleet.call, each))


async def moved(fleet: AppFleet) -> None:
    """The second revision is reached, and all is as it says."""
    await fleet.reached(2, within=900)
    found = await fleet.records()
    marks = {name: each.part_of for name, each in found.items()}
    assert marks == {"a": MARK, "new": MARK, "web": MARK, "found": MARK, "foreign": ""}
    assert found["a"].labels == {"n": "2"}
    assert (await fleet.records("nodes"))["n1"].labels["rack"] == "r2"
    assert Counter(await created(fleet)) == Counter({"a": 1, "b": 1, "c": 1, "web": 1, "new": 1})


async def back(fleet: AppFleet) -> None:
    """The second revision failed, and all is as the first one says."""

    async def so() -> bool:
        state = await fleet.state()
        return (state.refused, state.effective, state.swept) == (2, 1, 2)

    await fleet.until(so, 600, "the way back")
    found = await fleet.records()
    marks = {name: each.part_of for name, each in found.items()}
    assert marks == {"a": MARK, "b": MARK, "c": MARK, "web": MARK, "found": "", "foreign": ""}
    assert found["a"].labels == {"n": "1"}
    assert (await fleet.records("nodes"))["n1"].labels["rack"] == "r1"


async def created(fleet: AppFleet) -> list[str]:
    """The names of what apps made, as the audit tells."""
    audits = [audit for action in ("app.begin", "app.apply") for audit in await fleet.fleet.audits(action)]
    made = [name for audit in audits for name in str(audit.after.get("create", "")).split(", ") if name]
    return [name.removeprefix("rc/") for name in made if name.startswith("rc/")]


WAYS: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any], Any]] = {
    "forward": (AFTER, {"prune": True}, moved),
    "back": (BAD, {"on_failure": "rollback", "deadline": 40.0}, back),
}


async def falls(way: str, fate: str, k: int) -> bool:
    """Whether the app has a k-th transaction; what must hold is asserted."""
    documents, settings, ended = WAYS[way]
    async with app_fleet("n1", "n2") as fleet:
        await prepared(fleet)
        fall = Fall(fleet.fleet.farms["f0"], fate, k, "apps")
        await fleet.apply(*documents, **settings)

        async def over() -> bool:
            state = await fleet.state()
            return fall.reached.is_set() or state.reached == 2 or state.swept == 2

        await fleet.until(over, 900)
        if not fall.reached.is_set():
            await ended(fleet)
            return False
        if fate.startswith("killed"):
            await fleet.fleet.crash("f0")
        await fleet.fleet.start("f1", kinds=KINDS)
        await ended(fleet)
        fall.released.set()
        await fleet.clock.advance(30)
        await ended(fleet)
        return True


@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("way", list(WAYS))
async def test_r12_a_farm_that_falls_away_at_any_transaction_of_an_app_changes_nothing_about_its_end(
    way: str, fate: str
) -> None:
    k = 1
    while await falls(way, fate, k):
        k += 1
    assert k > 5
