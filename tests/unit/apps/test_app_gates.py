"""What apps wait for before they go on, and what they leave alone meanwhile: farms on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from farmd.apps import commands
from farmd.commands.mutation import commit
from farmd.replication.commands import RC, set_replicas
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from tests.app_fleet import KEYS, MARK, app_fleet, apply, document, pod, rc, spec
from tests.effort import first
from tests.fleet import Inbox


@pytest.mark.parametrize(
    ("words", "phase", "made"), [(["--ends"], "reached", {"web"}), (["--ends", "--bad"], "failed", set())]
)
async def test_what_waits_for_a_job_begins_as_soon_as_that_ended_well_and_never_after_a_failure(
    words: list[str], phase: str, made: set[str]
) -> None:
    async with app_fleet("n1") as fleet:
        await fleet.fleet.arrive("n1", features=["jobs.1"])
        load = document("job", "load", backoff_limit=0, types=[{"name": "main", "pod": pod("load", *words)}])
        await fleet.apply(load, rc("web", after=["job/load"]))
        await fleet.told(phase, within=30)
        assert set(await fleet.records()) == made


async def test_a_daemon_set_holds_up_the_next_step_until_it_is_available_on_every_eligible_node() -> None:
    async with app_fleet("n1", "n2") as fleet:
        logs = document("daemonset", "logs", pod=pod("logs", "--bad"), min_healthy_time=0)
        await fleet.apply(logs, rc("web", wave=1))
        await fleet.told("daemonset/logs: 0 of 2 available")
        await fleet.clock.advance(30)
        assert await fleet.records() == {}
        await fleet.apply(logs | {"pod": pod("logs")}, rc("web", wave=1))
        await fleet.reached(2, within=300)
        assert set(await fleet.records()) == {"web"}


async def test_a_controller_that_left_the_files_in_mid_rollout_goes_when_that_is_over_with_both() -> None:
    async with app_fleet("n1", "n2", "n3") as fleet:
        slow = {"progress_deadline": 20}
        await fleet.apply(rc("web", "--v1", replicas=2, rollout=slow), rc("keep"))
        await fleet.reached(1)
        await fleet.apply(rc("web", "--bad", replicas=2, rollout=slow), rc("keep"))
        await fleet.told("rc/web: managed by rollout/web")
        await fleet.apply(rc("keep"), prune=True)
        assert "rc/web: managed by rollout/web" in (await fleet.told("sweeping")).reason
        assert len(await fleet.records()) == 3  # the one that goes, the one that comes, and rc/keep
        await fleet.reached(3, within=600)
        assert (set(await fleet.records()), await fleet.records("rollouts")) == ({"keep"}, {})
        assert len(await fleet.fleet.audits("rollout.reverted")) == 1


async def test_who_waits_for_a_revision_is_told_who_applied_another_one_meanwhile() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", "--bad"), deadline=3000.0)
        wait = asyncio.create_task(commands.reached(fleet.call, "shop", 1, 600.0, lambda _: None))
        await fleet.clock.advance(5)
        assert not wait.done()
        await apply(replace(fleet.call, actor="user/bob@desk"), "shop", rc("web"))
        await fleet.clock.advance(5)
        with pytest.raises(EndedOtherwise, match="'shop': user/bob@desk applied revision 2 meanwhile"):
            await asyncio.wait_for(wait, 1)


async def test_who_waits_for_a_revision_is_told_so_also_where_the_later_one_was_removed_by_hand() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"))
        await fleet.reached(1)
        number = await fleet.apply(rc("web"))
        await fleet.call.client.delete(KEYS.tracker("shop", number))
        with pytest.raises(EndedOtherwise, match="'shop': somebody applied revision 2 meanwhile"):
            await commands.reached(fleet.call, "shop", 1, 600.0, lambda _: None)


async def test_who_waits_for_an_app_that_is_blocked_is_not_told_that_it_goes_on() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"))
        await fleet.reached(1)
        await fleet.apply(rc("web"), app="next")
        await fleet.told("belongs to app shop", app="next")
        wait = asyncio.create_task(commands.reached(fleet.call, "next", 1, 5.0, lambda _: None))
        await fleet.clock.advance(10)
        with pytest.raises(WaitTimeout, match="rc/web: belongs to app shop") as late:
            await asyncio.wait_for(wait, 1)
        assert late.value.hint == "farmctl app describe next"


async def test_the_wait_for_a_revision_ends_where_the_way_back_from_it_fails_too() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", ignore=["replicas"]), on_failure="rollback", deadline=30.0)
        await fleet.reached(1)
        await fleet.apply(rc("bad", "--bad"))
        await commit(fleet.call, await set_replicas(fleet.call, "web", 2))  # more than there are nodes
        wait = asyncio.create_task(commands.reached(fleet.call, "shop", 2, 600.0, lambda _: None))
        await fleet.told("the way back to revision 1 failed", within=300)
        await fleet.clock.advance(5)
        with pytest.raises(
            EndedOtherwise, match="the way back to revision 1 failed: not ready in time: rc/web"
        ):
            await asyncio.wait_for(wait, 1)


async def test_objects_that_an_app_left_behind_are_taken_again_by_one_of_its_name() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), rc("b"))
        await fleet.reached(1)
        before = await fleet.records()
        await fleet.say(deleting="keep")
        await fleet.gone()
        await fleet.apply(rc("a"), rc("b"))
        await fleet.reached(1)
        after = await fleet.records()
        assert {name: (each.id, each.part_of) for name, each in after.items()} == {
            name: (each.id, MARK) for name, each in before.items()
        }


async def test_people_are_told_of_an_app_that_is_blocked_for_ten_minutes_and_not_before() -> None:
    inbox = Inbox()
    async with app_fleet("n1", alerts=inbox) as fleet:
        await commit(fleet.call, await RC.create(fleet.call, spec("web", replicas=0)))
        await fleet.apply(rc("web", replicas=1), deadline=3000.0)
        await fleet.told("exists and differs")
        await fleet.clock.advance(590)
        assert "app_shop" not in inbox.firing
        await fleet.clock.advance(20)
        assert "app_shop" in inbox.firing
        await fleet.apply(rc("web", replicas=1), adopt=["rc/web"])
        await fleet.reached(2)
        await fleet.told("converged")
        assert "app_shop" in inbox.resolved


@pytest.mark.parametrize("broken", first(1, ["apps/shop", "trackers/shop/00000002", "work/apps/shop"]))
async def test_people_are_told_of_an_app_whose_records_do_not_decode_for_ten_minutes(broken: str) -> None:
    inbox = Inbox()
    async with app_fleet("n1", alerts=inbox) as fleet:
        await fleet.apply(rc("web"), paused=True)
        await fleet.told("paused")
        await fleet.apply(rc("web"))
        key = f"{KEYS.prefix}{broken}"
        mended = await fleet.call.client.read(key)
        assert mended is not None
        await fleet.call.client.put(key, b"{")
        if broken.startswith("trackers"):
            await fleet.say(paused=False)  # it is read then
        await fleet.told("blocked")
        await fleet.clock.advance(580)
        assert "app_shop" not in inbox.firing
        await fleet.clock.advance(90)
        assert broken in inbox.firing["app_shop"].summary
        await fleet.call.client.put(key, mended.value)
        await fleet.say(paused=False)
        await fleet.reached(2)
        await fleet.told("converged")
        assert "app_shop" in inbox.resolved


@pytest.mark.parametrize("deleting", first(1, ["objects", ""]))
async def test_people_are_told_of_an_app_one_of_whose_objects_does_not_decode_for_ten_minutes(
    deleting: str,
) -> None:
    inbox = Inbox()
    async with app_fleet("n1", alerts=inbox) as fleet:
        await fleet.apply(rc("db"), rc("web"))
        await fleet.reached(1)
        key = KEYS.record("rcs", (await fleet.records())["web"].id)
        mended = await fleet.call.client.read(key)
        assert mended is not None
        await fleet.call.client.put(key, b"{")
        await fleet.told("does not decode")
        await fleet.say(deleting=deleting)
        assert (await fleet.told("blocked")).reason.startswith("rc/web: its record does not decode")
        await fleet.clock.advance(580)
        assert "app_shop" not in inbox.firing
        await fleet.clock.advance(90)
        assert "rc/web: its record does not decode" in inbox.firing["app_shop"].summary
        await fleet.call.client.put(key, mended.value)
        await (fleet.gone() if deleting else fleet.told("converged"))
        assert "app_shop" in inbox.resolved


async def test_what_a_person_disabled_stays_so_until_a_new_revision_says_otherwise() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", disabled=False))
        await fleet.reached(1)
        await commit(fleet.call, await RC.disable(fleet.call, "web"))
        await fleet.clock.advance(20)
        assert (await fleet.records())["web"].disabled
        await fleet.apply(rc("web", disabled=False, labels={"n": "2"}))
        await fleet.reached(2)
        assert not (await fleet.records())["web"].disabled
