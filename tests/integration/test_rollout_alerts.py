"""Alerts of rollouts on a real Consul: none is lost with a farm, and what people hold is no trouble."""

from __future__ import annotations

import msgspec
import pytest

from farmd.rollout import commands
from store import codec
from store.status import Status
from tests.fleet import eventually, farm_on
from tests.mortal import bury, mortal_farm
from tests.obedient import Obedient
from tests.rolling import FIRST, IMPATIENT, KINDS, SECOND, STAGED, Rolling, digest


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
async def test_the_alert_of_a_revert_outlives_the_farm_that_made_it(
    rolling: Rolling, agents: Obedient, answered: bool
) -> None:
    """The farm dies with its last transaction; the controller's next owner tells of it and of its end."""
    agents.broken = {digest(SECOND)}
    dies = mortal_farm(rolling.cluster, rolling.address, "rollout.reverted", answered=answered, kinds=KINDS)
    async with dies as mortal:
        ident = await rolling.begin(2, IMPATIENT)
        await mortal.falls()
        await bury(rolling.cluster)
    assert (await rolling.ended(ident)).outcome == "reverted"
    async with farm_on(rolling.cluster.client, "heir", keys=rolling.cluster.keys, kinds=KINDS) as heir:

        async def told() -> bool:
            return "rollout_web" in heir.alerts.firing

        await eventually(told, what="the alert of the version that failed")
        summary = heir.alerts.firing["rollout_web"].summary
        assert summary.startswith(f"rollout web to {digest(SECOND)[:12]}: ")
        await rolling.whole(FIRST, 2)
        agents.broken = set()
        await rolling.ended(await rolling.update(SECOND, retry=True))
        await rolling.whole(SECOND, 2)

        async def over() -> bool:
            return "rollout_web" not in heir.alerts.firing

        await eventually(over, what="the end of the alert")


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize("outcome", ["done", "aborted"])
async def test_an_alert_that_is_over_with_the_end_outlives_no_farm_that_dies_then(
    rolling: Rolling, agents: Obedient, outcome: str, answered: bool
) -> None:
    """The version failed before; the end that makes it history is the last transaction of the farm."""
    agents.broken = {digest(SECOND)}
    action = f"rollout.{outcome}"
    dies = mortal_farm(rolling.cluster, rolling.address, action, answered=answered, kinds=KINDS)
    async with dies as mortal:
        if outcome == "done":
            await rolling.ended(await rolling.begin(2, IMPATIENT))
            agents.broken = set()
            await rolling.update(SECOND, retry=True)
        else:
            paused = msgspec.structs.replace(IMPATIENT, on_failure="pause")
            await rolling.status(await rolling.begin(2, paused), "halted")
            await rolling.say(await commands.abort(rolling.call, "web"))
        assert "rollout_web" in mortal.farm.alerts.firing
        await mortal.falls()
        await bury(rolling.cluster)
    async with farm_on(rolling.cluster.client, "heir", keys=rolling.cluster.keys, kinds=KINDS) as heir:

        async def over() -> bool:
            return "rollout_web" in heir.alerts.resolved

        async def recorded() -> bool:
            """A status of the very record that names the alert says that nothing is open."""
            keys, client = rolling.cluster.keys, rolling.cluster.client
            rc = (await rolling.controllers())["web"]
            record, told = [
                await client.read(key) for key in (keys.record("rcs", rc.id), keys.status("rcs", rc.id))
            ]
            if record is None or told is None:
                return False
            status = codec.decode(Status, told.value, told.key)
            return status.record == record.modify_index and "rollout_web" not in status.alerts

        await eventually(over, what="the end of the alert")
        await eventually(recorded, what="the record that the end was told")
    async with farm_on(rolling.cluster.client, "third", keys=rolling.cluster.keys, kinds=KINDS) as third:
        rc = (await rolling.controllers())["web"]
        lost = rolling.cluster.keys.intent(*min(await rolling.cluster.pods(rc.id)))
        await rolling.call.client.delete(lost)

        async def repaired() -> bool:
            return await rolling.call.client.read(lost) is not None

        await eventually(repaired, what="the work of the third farm")
        assert third.alerts.resolved == []


async def test_what_people_hold_is_not_counted_as_blocked(rolling: Rolling, agents: Obedient) -> None:
    async with farm_on(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS) as farm:

        def counted(phase: str) -> tuple[float, float]:
            farm.farm.publish()
            return farm.metric("farmd_blocked", kind="rollouts"), farm.metric(
                "farmd_rollouts", target="rc", phase=phase
            )

        ident = await rolling.begin(3, STAGED)
        await rolling.status(ident, "waits for farmctl rollout approve web")
        assert counted("baking") == (0, 1)
        await rolling.say(await commands.pause(rolling.call, "web"))
        await rolling.status(ident, "paused")
        assert counted("paused") == (0, 1)
        assert farm.metric("farmd_rollout_step_duration_seconds_count", result="done") == 1
        await rolling.say(await commands.abort(rolling.call, "web"))
        await rolling.ended(ident)
