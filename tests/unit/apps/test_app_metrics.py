"""The metrics of apps count what became of the world."""

from __future__ import annotations

from msgspec.structs import replace

from farmd.apps.metrics import STATES
from farmd.replication.commands import RC
from tests.app_fleet import KEYS, AppFleet, app_fleet, rc


def acts(fleet: AppFleet) -> dict[str, float]:
    """The changes of records until now, by verb."""
    farm = fleet.fleet.farms["f0"]
    verbs = ("create", "update", "adopt", "repair", "replace", "release", "hand", "remove")
    told = {act: farm.metric("farmd_app_objects_total", backend="consul", act=act) for act in verbs}
    return {act: count for act, count in told.items() if count}


def states(fleet: AppFleet) -> dict[str, float]:
    """How many apps are in which state."""
    farm = fleet.fleet.farms["f0"]
    told = {state: farm.metric("farmd_apps", state=state) for state in STATES}
    return {state: count for state, count in told.items() if count}


def waves(fleet: AppFleet, what: str, result: str) -> float:
    """The number, or the seconds, of the steps that ended so."""
    return fleet.fleet.farms["f0"].metric(f"farmd_app_wave_duration_seconds_{what}", result=result)


async def test_changes_of_objects_are_counted_once_each_by_what_was_done() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=0), rc("db", replicas=0))
        await fleet.reached(1)
        assert acts(fleet) == {"create": 2}
        records = RC.records(fleet.call.client, KEYS)
        stored = await records.find("web")
        await fleet.call.client.transaction(
            [records.replace(stored, replace(stored.record, replicas_desired=2))]
        )
        await fleet.clock.advance(5)
        assert acts(fleet) == {"create": 2, "repair": 1}
        await fleet.apply(rc("web", replicas=0), prune=True)
        await fleet.reached(2)
        assert acts(fleet) == {"create": 2, "repair": 1, "remove": 1}


async def test_apps_are_counted_by_where_they_are_and_one_that_is_gone_no_more() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=0))
        await fleet.apply(rc("db", "--bad"), app="till", deadline=600.0)
        await fleet.reached(1)
        await fleet.told("progressing", app="till")
        assert states(fleet) == {"reached": 1, "applying": 1}
        await fleet.say(paused=True)
        await fleet.told("paused")
        assert states(fleet) == {"paused": 1, "applying": 1}
        await fleet.say(app="till", deleting="objects")
        await fleet.gone("till")
        assert states(fleet) == {"paused": 1}


async def test_the_time_of_a_step_is_observed_when_it_is_over_and_when_its_revision_fails() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=0), rc("db", "--bad", wave=1), deadline=30.0)
        await fleet.told("revision 1 failed")
        assert (waves(fleet, "count", "done"), waves(fleet, "count", "failed")) == (1, 1)
        assert 30.0 <= waves(fleet, "sum", "failed") <= 31.0
