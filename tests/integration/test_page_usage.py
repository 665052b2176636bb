"""What pods use, on the page: read from the agents of the nodes that it shows, while somebody looks."""

from __future__ import annotations

import html
import re
from functools import partial

import pytest
from aiohttp import web
from yarl import URL

from farmd.commands.mutation import Call
from farmd.web import usage as page_usage
from store import access, codec, features, operations
from store.access import OneTime
from store.nodes import Agent
from store.reality import Health, Reality, Usage
from store.times import plain
from tests.fleet import CLOCK, eventually
from tests.integration.test_page_api import Rig, rig
from tests.web_servers import serving_app

__all__ = ["rig"]


class Node:
    """An agent's HTTP: it burns one-time keys as a real one does, and says what one pod uses."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.cores = 0.25
        self.asked: list[OneTime] = []

    async def answer(self, request: web.Request) -> web.Response:
        place = self._call.keys.access(access.USAGE, "n0", access.ident(request.headers[access.HEADER]))
        entry = await self._call.client.read(place, mode="consistent")
        assert entry is not None
        self.asked.append(codec.decode(OneTime, entry.value, entry.key))
        await self._call.client.delete(place)
        used = Usage(at=CLOCK.now(), cores=self.cores, memory=64 << 20, pids=3)
        # A node with many pods answers more than one piece of the connection.
        return web.json_response({"usage": {"web": plain(used)}, "padding": "x" * 500_000})


async def test_pods_owners_nodes_and_the_fleet_show_what_is_used_beside_what_is_asked_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = rig.rolling.cluster, Node(rig.rolling.call)
    app = web.Application()
    app.router.add_get("/v1/usage", node.answer)
    async with serving_app(app) as served:
        port = URL(served).port
        key, session = cluster.keys.agent("n0"), cluster.nodes["n0"]
        agent = Agent(
            node="n0",
            version="1",
            features=[features.ACCESS, features.USAGE],
            address=f"http://127.0.0.1:{port}",
            capacity={"cpu": 4, "memory": 1 << 30},
        )
        await cluster.write([operations.lock(key, codec.encode(agent), session.id)])

        async def told() -> bool:
            return await cluster.client.read(cluster.keys.reality("n0", "web")) is not None

        await eventually(told, what="what the agent says by itself, once")
        intent = await cluster.client.read(cluster.keys.intent("n0", "web"))
        rc = rig.rolling.rc
        assert intent is not None
        assert rc is not None
        reality = Reality(
            manifest=rc.manifest,
            owner=rc.id,
            started=CLOCK.now(),
            intent=intent.modify_index,
            health=Health("passing", CLOCK.now()),
            pid=77,
        )
        await cluster.client.put(cluster.keys.reality("n0", "web"), codec.encode(reality))

        async def shown(path: str) -> str:
            async with rig.http.get(rig.address + path, headers={"Accept": "text/html"}) as answer:
                return html.unescape(re.sub(r"<[^>]+>", " ", (await answer.text()).partition("<main")[2]))

        async def has(path: str, text: str) -> bool:
            found = text in await shown(path)
            rig.site.usage._soon.set()
            return found

        for path, text in (
            ("/nodes/n0/pods/web", "0.25 cores"),
            ("/controllers/web", "0.25 cores, 64 MiB of memory"),
            ("/nodes/n0", "0.25 cores, 64 MiB of memory"),
            ("/", "0.25 cores used"),
        ):
            await eventually(partial(has, path, text), what=f"{text} on {path}")
        assert {each.by for each in node.asked} == {"farm/farm-1"}
        assert {each.request.path for each in node.asked} == {"/v1/usage"}

        node.cores = 0.75
        await eventually(
            lambda: has("/controllers/web", "CPU of the last 1 min: 0.25 cores to 0.75 cores"), what="a line"
        )
        monkeypatch.setattr(page_usage, "MOST_NODES", 0)
        assert "more than 0" in await shown("/controllers/web")
