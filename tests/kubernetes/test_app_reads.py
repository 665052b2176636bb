"""What an app reads of its objects on a real API server, and what it knows without a read."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farmd.apps.facts import Act
from farmd.kubernetes.apps.api import Api, Discovery
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.apps.writes import Applicator
from farmd.kubernetes.objects import Resource
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock, system_rng
from store.apps import Entry
from tests.fleet import eventually
from tests.kubernetes.test_app_objects import CLUSTER, World, config, path

pytestmark = pytest.mark.xdist_group("kubernetes")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


class Reading(World):
    """A world whose app watches; ``read`` has the paths of its reads, and ``watches`` lets events through."""

    def __init__(self, api: Any, namespace: str, transport: KubernetesTransport) -> None:
        super().__init__(api, namespace, transport)
        self.watching = Watching(transport, (namespace,), SystemClock(), system_rng())
        self.read = list[str]()
        self.watches = asyncio.Event()
        self._send, self._watch = transport.send, transport.watch
        transport.send = self._counted  # type: ignore[method-assign]
        transport.watch = self._held  # type: ignore[method-assign]
        asks = Api(transport, Discovery(transport), "shop", lambda: 10.0, impersonate=False)
        self.shop = Applicator(asks, "shop", CLUSTER, SystemClock(), self.watching)

    async def _counted(self, request: ApiRequest, *rest: Any, **more: Any) -> bytes:
        if request.path.startswith(f"/api/v1/namespaces/{self.namespace}") and not request.write:
            self.read.append(request.path.rpartition("/")[2])
        return await self._send(request, *rest, **more)

    @asynccontextmanager
    async def _held(self, request: ApiRequest, timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._watch(request, timeout) as lines:

            async def later() -> AsyncIterator[bytes]:
                async for line in lines:
                    await self.watches.wait()
                    yield line

            yield later()

    async def synced(self) -> None:
        """Watch the resource, and wait for its first list."""
        self.watching.watch(CONFIG_MAPS)

        async def so() -> bool:
            return all(each.synced for each in self.watching._of(CONFIG_MAPS))

        await eventually(so, what="the first list")
        self.read.clear()

    def version(self, entry: Entry) -> str:
        return self.watching.version(CONFIG_MAPS, entry.ref)


@pytest.fixture
async def reading(api: Any, namespace: str, connect: Callable[..., Any]) -> AsyncIterator[Reading]:
    async with connect(api) as transport:
        made = Reading(api, namespace, transport)
        try:
            yield made
        finally:
            await made.watching.close()


def created(entries: dict[str, Entry]) -> list[Act]:
    return [Act("create", entry.ref, entry) for entry in entries.values()]


async def test_many_new_objects_cost_one_list_and_what_stands_under_their_names_is_read_and_left_alone(
    reading: Reading,
) -> None:
    entries = reading.entries(*(config(f"c{number:02}", mode="ours") for number in range(20)))
    maps = f"/api/v1/namespaces/{reading.namespace}/configmaps"
    reading.api.ask("POST", maps, {"metadata": {"name": "c07"}, "data": {"mode": "theirs"}})
    await reading.synced()
    found = await reading.shop.read(entries, False)
    assert [(live.ref.name, live.owner, live.differs) for live in found.values()] == [
        ("c07", "", ("data.mode",))
    ]
    assert reading.read == ["configmaps", "c07"]
    reading.api.ask("POST", maps, {"metadata": {"name": "c08"}, "data": {"mode": "theirs"}})
    rest = {ref: entry for ref, entry in entries.items() if entry.ref.name != "c07"}
    waiting = await reading.shop.act(created(rest), 1)
    assert [ref.rpartition("/")[2] for ref in waiting] == ["c08"]
    assert "somebody else created it in the meantime" in next(iter(waiting.values()))
    assert reading.there(path(reading, "c08"))["data"] == {"mode": "theirs"}


async def test_an_own_write_is_known_before_the_watch_shows_it_and_a_later_change_once_it_does(
    reading: Reading,
) -> None:
    (entry,) = reading.entries(config(mode="ours")).values()
    await reading.synced()
    assert await reading.look(reading.shop, entry) is None
    assert await reading.does(reading.shop, "create", entry) == {}
    reading.read.clear()
    live = await reading.look(reading.shop, entry)
    assert (live and live.owner, live and live.differs, reading.read) == ("apps/shop", (), [])
    reading.api.patch(path(reading), {"data": {"mode": "theirs"}})
    newest = reading.there(path(reading))["metadata"]["resourceVersion"]
    reading.watches.set()

    async def shown() -> bool:
        return reading.version(entry) == newest

    await eventually(shown, what="the watch shows the change")
    live = await reading.look(reading.shop, entry)
    assert (live and live.differs, reading.read) == (("data.mode",), ["settings"])


async def test_an_own_write_that_somebody_deleted_is_gone_once_the_watch_shows_that(reading: Reading) -> None:
    (entry,) = reading.entries(config(mode="ours")).values()
    await reading.synced()
    assert await reading.does(reading.shop, "create", entry) == {}
    assert reading.version(entry)
    reading.api.ask("DELETE", path(reading))
    reading.watches.set()

    async def gone() -> bool:
        return not reading.version(entry)

    await eventually(gone, what="the watch shows that it is gone")
    assert await reading.look(reading.shop, entry) is None
    with pytest.raises(urllib.error.HTTPError):
        reading.there(path(reading))
