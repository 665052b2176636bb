"""Who reads the logs of a node from its agent: nobody without a credential, and each one-time key once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from farmd.agent import access as doors
from farmd.agent.http import add_routes
from farmd.commands import one_time
from farmd.commands.mutation import Call
from farmd.config.sections import WebSection
from farmd.runtime.clock import SystemIds
from farmd.web import tokens
from farmd.web.access import Access
from farmd.web.hosts import METRIC, Refusals
from farmd.web.server import errors_as_json
from store import access, codec
from store.access import OneTime
from tests.agents import CLOCK, Agents, shell
from tests.farmctl import Farmctl
from tests.fleet import eventually
from tests.processes import Program
from tests.recorders import CountingRecorder
from tests.web_servers import serving_app

TALKER = shell("echo i was heard; exec sleep 1000")
PATH = "/v1/pods/web/logs"


class Rig(SimpleNamespace):
    """An agent whose routes are served as its process serves them, with a pod that wrote a line."""

    agents: Agents
    http: aiohttp.ClientSession
    address: str
    token: str
    recorder: CountingRecorder
    call: Call

    async def get(self, headers: dict[str, str], path: str = PATH, **params: str) -> tuple[int, str]:
        async with self.http.get(self.address + path, params=params, headers=headers) as answer:
            return answer.status, await answer.text()

    async def key(
        self, path: str = PATH, instance: str = "web", node: str = "n1", **params: str
    ) -> dict[str, str]:
        return await one_time.header(self.call, node, instance, path, params)


@pytest.fixture
async def door(rig: Agents, tmp_path: Path) -> AsyncIterator[Rig]:
    running = await rig.agent()
    await rig.want(TALKER)
    await rig.until_running(TALKER)
    token, line = tokens.made("viewer", "viewer")
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(line)
    section, recorder = WebSection(tokens=str(file)), CountingRecorder()
    refusals = Refusals(recorder, CLOCK)

    def keys_of(purpose: str) -> doors.OneTimeKeys:
        return doors.OneTimeKeys(
            rig.client,
            rig.keys,
            "n1",
            lambda: running.agent.cluster,
            CLOCK,
            lambda peer, why: refusals.note("key", peer, why),
            purpose,
        )

    keys, bearer = keys_of(access.LOGS), Access(section, CLOCK, refusals).bearer
    app = aiohttp.web.Application(middlewares=[errors_as_json])
    app.middlewares.append(doors.Door(section, bearer, keys, keys_of(access.USAGE)).admits)
    add_routes(app, running.agent, CLOCK)
    call = Call(rig.client, rig.keys, CLOCK, SystemIds(), "user/test@here")
    async with serving_app(app) as address, aiohttp.ClientSession() as http:
        made = Rig(
            agents=rig, http=http, address=address, token=token, recorder=recorder, call=call, keys=keys
        )

        async def wrote() -> bool:
            return "heard" in (await made.get({"Authorization": f"Bearer {token}"}))[1]

        await eventually(wrote, what="the line")
        yield made


async def test_pods_and_logs_need_a_credential_and_one_that_is_wrong_is_counted(door: Rig) -> None:
    for path in ("/v1/pods", PATH):
        async with door.http.get(door.address + path) as answer:
            assert (answer.status, answer.reason) == (401, doors.NEEDED)
    assert (await door.get({"Authorization": f"Bearer {door.token}x"}))[0] == 401
    assert (await door.get({access.HEADER: access.made()}))[0] == 403
    assert door.recorder.counts[(METRIC, "token")] == 1
    assert door.recorder.counts[(METRIC, "key")] == 1
    assert (await door.get({"Authorization": f"Bearer {door.token}"}, "/v1/pods"))[0] == 200


async def test_one_key_is_one_request_whoever_asks_at_the_same_time(door: Rig) -> None:
    headers = await door.key(lines="5")
    answers = await asyncio.gather(*(door.get(headers, lines="5") for _ in range(15)))
    assert sorted(status for status, _ in answers) == [200, *[403] * 14]
    assert (200, "i was heard\n") in answers
    assert (await door.agents.client.keys(door.agents.keys.tree("access"))).items == []


async def test_a_key_is_for_its_request_its_node_its_cluster_and_its_half_minute(door: Rig) -> None:
    place = door.agents.keys.access(access.LOGS, "n1", "")

    async def altered(**changed: object) -> dict[str, str]:
        headers = await door.key()
        name = place + access.ident(headers[access.HEADER])
        entry = await door.agents.client.read(name)
        assert entry is not None
        fields = {
            field: getattr(codec.decode(OneTime, entry.value, name), field)
            for field in OneTime.__struct_fields__
        }
        await door.agents.client.put(name, codec.encode(OneTime(**(fields | changed))))
        return headers

    now = CLOCK.now()
    for headers, why in (
        (await door.key(lines="1"), "for another request"),
        (await door.key(path="/v1/pods/other/logs", instance="other"), "for another request"),
        (await door.key(node="n2"), "the key is unknown"),
        (await altered(cluster="f" * 16), "another cluster"),
        (await altered(expires=now - 400), "400 s ago by this node's clock"),
        (await altered(issued=now + 400), "400 s by this node's clock"),
        ({access.HEADER: "no key"}, "the key is unknown"),
    ):
        status, told = await door.get(headers)
        assert status == 403
        assert why in told
    assert (await door.get(await door.key()))[0] == 200


async def test_bad_keys_of_a_peer_lock_out_nobody_and_are_looked_up_together(
    door: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs of the node are one peer."""

    async def guess() -> int:
        return (await door.get({access.HEADER: access.made()}))[0]

    assert {await guess() for _ in range(doors.MOST_BAD)} == {403}
    client, reads = door.agents.client, list[str]()
    read, listed = client.read, client.keys

    async def reading(key: str, **fields: Any) -> Any:
        reads.append("one")
        return await read(key, **fields)

    async def listing(prefix: str, **fields: Any) -> Any:
        reads.append("all")
        return await listed(prefix, **fields)

    good, other = await door.key(), await door.key(lines="1")
    monkeypatch.setattr(client, "read", reading)
    monkeypatch.setattr(client, "keys", listing)
    asked = [door.get(good), door.get(good), door.get(other)]
    answers = await asyncio.gather(*(guess() for _ in range(200)), *asked)
    assert answers[:200] == [403] * 200
    assert sorted(status for status, _ in answers[200:]) == [200, 403, 403]
    assert reads.count("one") <= 3
    assert reads.count("all") < 100
    assert (await door.get(await door.key()))[0] == 200


async def test_farmctl_reads_logs_of_an_agents_process_by_a_key_and_an_open_agent_needs_none(
    rig: Agents, tmp_path: Path
) -> None:
    farmctl = Farmctl(rig.address, rig.keys.prefix)
    for read, asked in (("auto", 401), ("open", 200)):
        with Program(
            "agent",
            *("--port", "0"),
            folder=tmp_path,
            CONSUL_HTTP_ADDR=rig.address,
            FARMD_STORE__PREFIX=rig.keys.prefix,
            FARMD_AGENT__STATE_DIR=str(tmp_path / "n1"),
            FARMD_AGENT__NODE="n1",
            FARMD_WEB__READ=read,
            FARMD_AGENT__SHARE_USER="true",
        ) as agent:
            port = (await asyncio.to_thread(agent.wait_for, "web.listening"))["port"]
            await asyncio.to_thread(agent.wait_for, "process.ready")
            await rig.want(TALKER)
            await rig.until_running(TALKER)
            url = f"http://127.0.0.1:{port}{PATH}"
            async with aiohttp.ClientSession() as http:
                async with http.get(url) as answer:
                    assert answer.status == asked
                async with http.get(url, headers={"Host": "evil.example"}) as answer:
                    assert answer.status == 421

            async def heard() -> bool:
                return (await asyncio.to_thread(farmctl, "pod", "logs", "n1/web")).out == "i was heard\n"

            await eventually(heard, what="the line")
    assert (await rig.client.keys(rig.keys.tree("access"))).items == []


async def test_a_key_for_usage_opens_nothing_else_and_no_other_key_opens_that(door: Rig) -> None:
    path = "/v1/usage"
    for_usage = await one_time.header(door.call, "n1", "", path, {}, access.USAGE)
    assert (await door.get(for_usage, "/v1/pods"))[0] == 403
    assert (await door.get(for_usage, path))[0] == 200
    assert (await door.get(for_usage, path))[0] == 403
    assert (await door.get(await door.key(path, ""), path))[0] == 403
    assert (await door.get({}, path))[0] == 401
