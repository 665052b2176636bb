"""Rollouts on a real Consul: to the end and back, with farms that die, lend, take and share.

After each run: the audit adds up to the pods that stand, counts equal pods, and one controller has the name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from farmd.rollout import commands
from farmd.services import commands as service_commands
from store.errors import Conflict, NotFound
from store.services import ServiceStore
from tests.fleet import RunningFarm, eventually, farm_on, start_farm
from tests.mortal import bury, mortal_farm
from tests.obedient import Obedient
from tests.rolling import FIRST, IMPATIENT, KINDS, PATIENT, SECOND, STAGED, Rolling, digest


@pytest.fixture
async def farm(rolling: Rolling) -> AsyncIterator[RunningFarm]:
    running = await start_farm(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS)
    yield running
    await running.close()


async def test_a_new_version_comes_in_place_and_takes_the_name(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(4)
    ended = await rolling.ended(ident)
    assert (ended.outcome, ended.old.replicas_desired) == ("done", 0)
    await rolling.whole(SECOND, 4)
    moves = [audit for audit in await rolling.cluster.audits() if audit.action == "rollout.move"]
    assert [(len(audit.placed), len(audit.removed)) for audit in moves] == [(1, 1)] * 4


async def test_two_farms_share_what_belongs_together(rolling: Rolling, agents: Obedient) -> None:
    """One farm works on the rollout and another on the controllers: neither adds nor loses a pod (B2)."""
    one = farm_on(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS)
    two = farm_on(rolling.cluster.client, "farm-2", keys=rolling.cluster.keys, kinds=("rcs",))
    async with one, two:
        for manifest in (SECOND, FIRST, SECOND):
            ident = await (rolling.begin(4) if rolling.rc is None else rolling.update(manifest))
            await rolling.ended(ident)
            await rolling.whole(manifest, 4)
        audits = [audit for audit in await rolling.cluster.audits() if audit.action.startswith("pods.")]
        assert [audit.action for audit in audits] == ["pods.place"]  # the first placement, and no other


async def test_w10_a_farm_that_has_not_seen_the_new_intents_leaves_none_behind(
    rolling: Rolling, agents: Obedient
) -> None:
    """The farm that owns the controllers learns of others' intents late, and removes a pod at once."""
    keys, client = rolling.cluster.keys, rolling.cluster.client
    one = farm_on(client, "farm-1", keys=keys, kinds=("rollouts",))
    two = farm_on(client, "farm-2", keys=keys, kinds=("rcs",), own_trees_pause=3600.0)
    async with one, two:
        await rolling.ended(await rolling.begin(4))
        (rc,) = (await rolling.controllers()).values()
        await rolling.cluster.change_rc(rc, replicas_desired=3)
        await rolling.whole(SECOND, 3)


async def test_a_version_that_fails_goes_back_and_is_not_tried_again(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    agents.broken = {digest(SECOND)}
    ended = await rolling.ended(await rolling.begin(3, IMPATIENT))
    assert (ended.outcome, "1 of 1 pods do not stay available" in ended.reason) == ("reverted", True)
    agents.broken = set()
    await rolling.whole(FIRST, 3)
    assert "rollout_web" in [alert.incident_key for alert in farm.alerts.fired]
    with pytest.raises(Conflict, match="was reverted"):
        await rolling.update(SECOND)
    await rolling.ended(await rolling.update(SECOND, retry=True))
    await rolling.whole(SECOND, 3)
    assert "rollout_web" in farm.alerts.resolved


async def test_people_pause_resume_revert_and_abort(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "waits for farmctl rollout approve web")
    lent = await rolling.controllers()
    assert [
        (rc.replicas_desired, rc.taken, rc.hands) for rc in sorted(lent.values(), key=lambda rc: rc.name)
    ] == [
        (2, False, 2),
        (1, False, 2),
    ]
    await rolling.say(await commands.pause(rolling.call, "web"))
    await rolling.say(await commands.approve(rolling.call, "web", everything=True))
    await rolling.status(ident, "paused")
    await rolling.say(await commands.resume(rolling.call, "web"))
    assert (await rolling.ended(ident)).outcome == "done"
    await rolling.whole(SECOND, 3)
    with pytest.raises(NotFound, match="done"):
        await commands.pause(rolling.call, "web")
    again = await commands.revert(rolling.call, "web")
    await rolling.say(again)
    assert (await rolling.ended(again.change.id)).outcome == "done"
    await rolling.whole(FIRST, 3)


async def test_a_held_canary_is_scaled_up_and_down_on_both_sides(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "waits for farmctl rollout approve web")
    for count, both in ((4, [3, 1]), (2, [1, 1])):
        await rolling.say(await commands.scale(rolling.call, "web", count))

        async def held(both: list[int] = both) -> bool:
            found = sorted((await rolling.controllers()).values(), key=lambda rc: rc.name)
            placed = [len(await rolling.cluster.pods(rc.id)) for rc in found]
            return placed == [rc.replicas_desired for rc in found] == both

        await eventually(held, what=f"{both} pods of both versions")
        await rolling.status(ident, "waits for farmctl rollout approve web")
    await rolling.say(await commands.approve(rolling.call, "web"))
    await rolling.ended(ident)
    await rolling.whole(SECOND, 2)


@pytest.mark.parametrize("gone", [("old",), ("new",), ("old", "new")], ids=" and ".join)
async def test_what_is_deleted_by_hand_in_the_middle_aborts_it_and_stays_in_history(
    rolling: Rolling, agents: Obedient, farm: RunningFarm, gone: tuple[str, ...]
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "approve")
    sides = {"old" if name == "web" else "new": rc for name, rc in (await rolling.controllers()).items()}
    for side in gone:
        await rolling.call.client.delete(rolling.call.keys.record("rcs", sides[side].id))
    ended = await rolling.ended(ident)
    assert (ended.outcome, ended.reason) == ("aborted", "one of the controllers was deleted")
    assert (ended.old.id, ended.old.name, ended.old.manifest) == (sides["old"].id, "web", digest(FIRST))
    assert [rc.managed_by for rc in (await rolling.controllers()).values()] == [""] * (2 - len(gone))


async def test_after_an_abort_revert_brings_all_pods_back_to_the_old_controller(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    ident = await rolling.begin(3, STAGED)
    await rolling.status(ident, "approve")
    await rolling.say(await commands.abort(rolling.call, "web"))
    assert (await rolling.ended(ident)).outcome == "aborted"
    counts = sorted(rc.replicas_desired for rc in (await rolling.controllers()).values())
    assert counts == [1, 2]
    await rolling.say(await commands.revert(rolling.call, "web"))

    async def alone() -> bool:
        return len(await rolling.controllers()) == 1

    await eventually(alone, what="the end of the second controller")
    await rolling.whole(FIRST, 3)
    over = await commands.history(rolling.call, "web")
    assert [(each.outcome, each.to_manifest) for each in over] == [
        ("done", digest(FIRST)),
        ("aborted", digest(SECOND)),
    ]
    assert set(await rolling.cluster.entries(rolling.call.keys.tree("history"))) == {
        rolling.call.keys.history("web", each.id) for each in over
    }


STEPS = ["rollout.take", "rollout.move", "rollout.next", "rollout.done"]


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize("step", STEPS)
async def test_w13_a_farm_that_dies_after_any_step_changes_nothing_about_the_end(
    rolling: Rolling, agents: Obedient, step: str, answered: bool
) -> None:
    async with mortal_farm(rolling.cluster, rolling.address, step, answered=answered, kinds=KINDS) as mortal:
        ident = await rolling.begin(3, PATIENT)
        await mortal.falls()
        await bury(rolling.cluster)
    async with farm_on(rolling.cluster.client, "heir", keys=rolling.cluster.keys, kinds=KINDS):
        assert (await rolling.ended(ident)).outcome == "done"
        await rolling.whole(SECOND, 3)


async def test_t8_a_service_names_both_versions_while_a_rollout_lasts_and_what_stays_after_it(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    await rolling.prepare(3)
    assert rolling.rc is not None
    first = rolling.rc.id
    services = ServiceStore(rolling.call.client, rolling.call.keys)
    await rolling.say(await service_commands.create(rolling.call, "shop", "http", ["web"]))

    async def active() -> list[str]:
        return (await services.find("shop")).record.active

    agents.broken.add(digest(SECOND))
    ident = await rolling.update(SECOND, IMPATIENT)
    assert len(await active()) == 2
    assert (await rolling.ended(ident)).outcome == "reverted"
    assert await active() == [f"rcs/{first}"]
    agents.broken.clear()
    ident = await rolling.update(SECOND, retry=True)
    assert (await rolling.ended(ident)).outcome == "done"
    (rc,) = (await rolling.controllers()).values()
    assert rc.id != first
    assert await active() == [f"rcs/{rc.id}"]
