"""Rollouts behind gates on a real Consul: a real Prometheus, and an HTTP server that flaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from farmd.rollout import commands
from farmd.rollout.gates import Asker, asking
from store.policies import Gate, Policy, Stage
from tests.agents import agents_on, shell
from tests.fleet import RunningFarm, eventually, farm_on
from tests.obedient import Obedient
from tests.prometheus import Scraped, prometheus
from tests.rolling import FIRST, KINDS, SECOND, Rolling, digest
from tests.web_servers import serving

QUICK: dict[str, Any] = {"every": 1.0, "timeout": 1.0, "passes": 2, "failures": 2}
ERRORS = Gate(name="errors", prometheus="errors", max=0.5, **QUICK)


def gated(gate: Gate, **fields: Any) -> Policy:
    """One pod first, then the rest behind the gate."""
    stages = [Stage(to=1, gates=[gate.name]), Stage(to="100%")]
    told = {"progress_deadline": 600.0, "min_healthy_time": 0.0, "stages": stages} | fields
    return Policy(gates=[gate], **told)


@pytest.fixture
async def scraped() -> AsyncIterator[Scraped]:
    async with prometheus() as running:
        yield running


@asynccontextmanager
async def farm_that_asks(rolling: Rolling, url: str = "") -> AsyncIterator[RunningFarm]:
    """A farm whose Prometheus is there."""
    async with asking() as http:
        ask = Asker(http, url)
        cluster = rolling.cluster
        async with farm_on(
            cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS, sections={"rollouts": ask}
        ) as farm:
            yield farm


async def test_a_number_within_its_limits_lets_it_go_on(
    rolling: Rolling, agents: Obedient, scraped: Scraped
) -> None:
    await scraped.scrapes(0.25)
    async with farm_that_asks(rolling, scraped.url) as farm:
        unhurried = msgspec.structs.replace(ERRORS, every=5.0)  # a busy machine sees the first answer, too
        ident = await rolling.begin(3, gated(unhurried))
        waits = await rolling.status(ident, "gate errors passed 1 of 2: 0.25 <= 0.5")
        (gate,) = waits.gates
        assert (gate.name, gate.result, gate.text, gate.wanted) == ("errors", "pass", "0.25 <= 0.5", 2)
        assert (await rolling.ended(ident)).outcome == "done"
        await rolling.whole(SECOND, 3)
        answers = farm.metric("farmd_rollout_gate_answers_total", type="prometheus", result="pass")
        assert answers >= 2


async def test_a_number_beyond_its_limit_turns_it_back_and_says_so(
    rolling: Rolling, agents: Obedient, scraped: Scraped
) -> None:
    await scraped.scrapes(0.75)
    async with farm_that_asks(rolling, scraped.url) as farm:
        ended = await rolling.ended(await rolling.begin(3, gated(ERRORS)))
        told = "gate errors failed 2 times in a row: 0.75 > 0.5"
        assert (ended.outcome, ended.reason) == ("reverted", told)
        await rolling.whole(FIRST, 3)
        summaries = {alert.summary for alert in farm.alerts.fired if alert.incident_key == "rollout_web"}
        assert summaries == {f"rollout web to {digest(SECOND)[:12]}: {told}"}


async def test_no_data_is_neither_pass_nor_failure(
    rolling: Rolling, agents: Obedient, scraped: Scraped
) -> None:
    """No series, several, NaN, and a Prometheus that is killed: the rollout waits and says for what."""
    async with farm_that_asks(rolling, scraped.url):
        ident = await rolling.begin(3, gated(ERRORS))
        await rolling.status(ident, "Prometheus: found no series, expected one")
        scraped.values = {"one": 0.1, "two": 0.1}
        await rolling.status(ident, "Prometheus: found 2 series, expected one")
        scraped.values = {"one": float("nan")}
        await rolling.status(ident, "Prometheus: found NaN, expected a number")
        scraped.kill()
        waits = await rolling.status(ident, "gate errors passed 0 of 2: Connect call failed")
        assert (waits.phase, waits.new.desired, waits.gates[0].failures) == ("baking", 1, 0)
        await asyncio.to_thread(scraped.start)
        await scraped.scrapes(0.1)
        assert (await rolling.ended(ident)).outcome == "done"


async def test_a_gate_without_data_halts_it_with_an_alert_and_turns_nothing_back(
    rolling: Rolling, agents: Obedient, scraped: Scraped
) -> None:
    scraped.kill()
    async with farm_that_asks(rolling, scraped.url) as farm:
        ident = await rolling.begin(3, gated(ERRORS, progress_deadline=10.0))
        halted = await rolling.status(ident, "halted gate errors has had no data for 10 s")
        assert (halted.new.desired, halted.old.desired) == (1, 2)
        assert "rollout_web" in farm.alerts.firing
        await asyncio.to_thread(scraped.start)
        await scraped.scrapes(0.1)
        await rolling.say(await commands.resume(rolling.call, "web"))
        assert (await rolling.ended(ident)).outcome == "done"
        await rolling.whole(SECOND, 3)
        assert "rollout_web" not in farm.alerts.firing


class Flapping:
    """A server whose answers are bad, good, or both in turns."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.asked = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.statuses[self.asked % len(self.statuses)])


def smoke(url: str, **fields: Any) -> Gate:
    return Gate(name="smoke", http=url, **(QUICK | fields))


async def test_a_server_that_flaps_neither_passes_nor_fails(rolling: Rolling, agents: Obedient) -> None:
    server = Flapping()
    server.statuses = [200, 500]
    async with serving(server.answer) as url, farm_that_asks(rolling):
        ident = await rolling.begin(3, gated(smoke(url), progress_deadline=10.0))
        halted = await rolling.status(ident, "halted gate smoke has not passed 2 times in a row within 10 s")
        assert (halted.new.desired, halted.old.desired) == (1, 2)
        server.statuses = [200]
        await rolling.say(await commands.resume(rolling.call, "web"))
        assert (await rolling.ended(ident)).outcome == "done"


async def test_an_approval_does_not_outvote_a_gate_that_fails_while_people_wait(
    rolling: Rolling, agents: Obedient
) -> None:
    server = Flapping()
    stages = [Stage(to=1), Stage(to="100%", approve=True)]
    async with serving(server.answer) as url, farm_that_asks(rolling):
        ident = await rolling.begin(3, gated(smoke(url), stages=stages))
        await rolling.status(ident, "waits for farmctl rollout approve web")
        server.statuses = [503]
        ended = await rolling.ended(ident)
        told = "gate smoke failed 2 times in a row: HTTP 503, expected 200"
        assert (ended.outcome, ended.reason) == ("reverted", told)
        await rolling.whole(FIRST, 3)


async def test_no_gate_is_asked_before_a_new_pod_is_available(rolling: Rolling, agents: Obedient) -> None:
    server = Flapping()
    agents.broken = {digest(SECOND)}
    async with serving(server.answer) as url, farm_that_asks(rolling):
        ended = await rolling.ended(await rolling.begin(2, gated(smoke(url), progress_deadline=3.0)))
        assert (ended.outcome, "do not stay available" in ended.reason) == ("reverted", True)
    assert server.asked == 0


@pytest.mark.parametrize("way", ["hangs", "metadata"])
async def test_a_gate_that_cannot_be_asked_holds_up_no_pod_and_no_other_gate(
    rolling: Rolling, agents: Obedient, way: str
) -> None:
    reached = list[str]()

    async def hang(request: web.Request) -> web.Response:
        reached.append(request.path)
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hang) as url, farm_that_asks(rolling) as farm:
        address = url if way == "hangs" else "http://0xa9fea9fe/latest/meta-data"
        ident = await rolling.begin(3, gated(smoke(address)))
        told = (
            "no answer within 1 s" if way == "hangs" else "refused: 169.254.169.254 is a link-local address"
        )
        waits = await rolling.status(ident, told)
        assert (waits.phase, waits.new.available) == ("baking", 1)
        none = farm.metric("farmd_rollout_gate_answers_total", type="http", result="none")
        assert none >= 1
        await rolling.say(await commands.revert(rolling.call, "web"))
        assert (await rolling.ended(ident)).outcome == "reverted"


async def test_another_farm_counts_passes_anew(rolling: Rolling, agents: Obedient) -> None:
    server = Flapping()
    async with serving(server.answer) as url:
        gate = smoke(url, every=10.0)  # a busy machine sees the first pass, too
        async with farm_that_asks(rolling):
            ident = await rolling.begin(3, gated(gate))
            await rolling.status(ident, "gate smoke passed 1 of 2")
        asked = server.asked
        async with farm_that_asks(rolling):
            assert (await rolling.ended(ident)).outcome == "done"
        assert server.asked >= asked + 2


async def test_real_pods_go_back_behind_a_gate_that_fails(
    consul_dev: str, scraped: Scraped, tmp_path: Path
) -> None:
    """Real agents and processes: the new version runs well by its health, and errs by its numbers."""
    first, second = shell("exec sleep 1000"), shell("exec sleep 2000")
    async with agents_on(consul_dev, tmp_path) as rig:
        rolling = Rolling(rig, consul_dev)
        for node in ("n1", "n2"):
            await rig.agent(node)
        await scraped.scrapes(0.1)
        async with farm_that_asks(rolling, scraped.url):
            rolling.rc = await rig.create_rc("web", 2, manifest=first, min_healthy_time=0.0)
            await rolling.placed(2)
            for node in ("n1", "n2"):
                await rig.until_running(first, node=node)
            gate = msgspec.structs.replace(ERRORS, passes=3)
            stages = [Stage(to=1, bake=600.0), Stage(to="100%")]
            ident = await rolling.update(second, gated(gate, stages=stages))
            await rolling.status(ident, "stage 1 is reached and rests")
            running = [
                node for node in ("n1", "n2") if (await rig.realities(node))["web"].manifest == digest(second)
            ]
            assert len(running) == 1
            await scraped.scrapes(0.9)
            ended = await rolling.ended(ident)
            assert (ended.outcome, "0.9 > 0.5" in ended.reason) == ("reverted", True)
            for node in ("n1", "n2"):
                await rig.until_running(first, node=node)
            await rolling.whole(first, 2)


async def test_a_large_fleet_of_gates_writes_no_status_for_each_answer(
    rolling: Rolling, agents: Obedient
) -> None:
    """While every answer says the same, neither the rollout's worker nor its status moves."""
    server = Flapping()
    stages = [Stage(to=1, bake=600.0), Stage(to="100%")]
    async with serving(server.answer) as url, farm_that_asks(rolling):
        ident = await rolling.begin(3, gated(smoke(url, passes=1), stages=stages))
        await rolling.status(ident, "stage 1 is reached and rests")
        key, client = rolling.call.keys.status("rollouts", ident), rolling.call.client

        async def passed() -> int:
            entry = await client.read(key)
            assert entry is not None
            return entry.modify_index if b'"passes":1' in entry.value else 0

        index, asked = await eventually(passed), server.asked

        async def answered() -> bool:
            return server.asked >= asked + 4

        await eventually(answered, what="four more answers")
        assert await passed() == index
