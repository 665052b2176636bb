"""Farms that keep apps over one embedded server on virtual time, with agents that do as intents say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from farmd.apps.bundle import parse_native
from farmd.apps.plan import carried
from farmd.apps.revision import wanted
from farmd.apps.scene import former, standing, state_of
from farmd.commands.mutation import Call, Change, audited, registered
from farmd.replication.commands import RC
from store import apps, codec
from store.apps import KIND, App, AppStatus, AppStore, DispatchState
from store.entry import Entry as RawEntry
from store.families import FAMILIES
from store.keys import Keys, is_sentinel
from store.pods import Place
from store.reality import Exit, Health, Intent, Reality
from tests.node_farms import KEYS, Fleet, NodeFarm, fleet_of

SECONDS = 0.25
KINDS = ("apps", "rcs", "rollouts", "daemonsets", "jobs", "nodes", "deployments")
MARK = "apps/shop"


def pod(name: str, *args: str) -> dict[str, Any]:
    return {"id": name, "command": ["/srv/app", *args]}


def rc(name: str, *args: str, **fields: Any) -> dict[str, Any]:
    """A controller's document, whose pods are available as soon as they are healthy."""
    said = {"replicas": 1, "min_healthy_time": 0, "pod": pod(name, *args)}
    return {"apiVersion": "farmd/v1", "kind": "rc", "name": name, **said, **fields}


def spec(name: str, *args: str, **fields: Any) -> Any:
    """The same controller as a file without an app says it."""
    said = rc(name, *args, **fields)
    del said["apiVersion"], said["kind"]
    return RC.file.parse(said, "test")


def document(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "farmd/v1", "kind": kind, "name": name, **fields}


async def apply(call: Call, name: str, *documents: Mapping[str, Any], **settings: Any) -> int:
    """Record a revision and want it, as ``farmctl apply`` does; its number."""
    store, now = AppStore(call.client, call.keys), await standing(call, name)
    number = now.stored.record.revision + 1 if now.stored is not None else 1
    before = now.stored.record if now.stored is not None else App(revision=1)
    app = msgspec.structs.replace(before, **({"revision": number, "mass": False, "adopt": []} | settings))
    entries = [parse_native(dict(each), "test") for each in documents]
    made = apps.tracker(
        number, carried(entries, await former(call, now), prune=app.prune), by=call.actor, at=call.clock.now()
    )
    told = audited(call, Change(KIND, name, name, "app.record"))
    await call.client.transaction(
        [await registered(call), store.record(name, made), store.want(name, now.stored, app), told]
    )
    return number


async def say(call: Call, name: str, **fields: Any) -> None:
    """What people say of an app besides: pause, delete and so on."""
    store, now = AppStore(call.client, call.keys), await standing(call, name)
    app = msgspec.structs.replace(wanted(now), **fields)
    await call.client.transaction([store.want(name, now.stored, app)])


async def records(call: Call, family: str) -> dict[str, Any]:
    """The records of a family by name."""
    keys: Keys = call.keys
    page = await call.client.list(keys.tree(family))
    entries = [RawEntry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
    kind = FAMILIES[family].record
    assert kind is not None
    found = {entry.key: codec.decode(kind, entry.value, entry.key) for entry in entries}
    return {getattr(each, "name", keys.last_part(key)): each for key, each in found.items()}


class AppFleet:
    """A cluster with farms and agents. Pods with the argument ``--bad`` never become healthy; those with
    ``--ends`` end at once, well or badly.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.clock = fleet.clock
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")
        self._said: dict[Place, int] = {}

    async def apply(self, *documents: Mapping[str, Any], app: str = "shop", **settings: Any) -> int:
        return await apply(self.call, app, *documents, **settings)

    async def say(self, app: str = "shop", **fields: Any) -> None:
        await say(self.call, app, **fields)

    async def state(self, app: str = "shop") -> DispatchState:
        return await state_of(self.call, app)

    async def status(self, app: str = "shop") -> AppStatus:
        entry = await self.fleet.client.read(KEYS.status(KIND, app))
        return AppStatus(state="none") if entry is None else codec.decode(AppStatus, entry.value, entry.key)

    async def records(self, family: str = "rcs") -> dict[str, Any]:
        return await records(self.call, family)

    async def until(self, done: Any, within: float = 120.0, what: str = "") -> Any:
        """Let time pass until ``done`` gives something true."""
        for _ in range(int(within / SECONDS)):
            if found := await done():
                return found
            await self.clock.advance(SECONDS)
        told = await self.status()
        raise AssertionError(f"{what or done} not within {within:g} s: {told} {await self.state()}")

    async def reached(self, number: int, app: str = "shop", within: float = 120.0) -> None:
        """Wait until a revision is reached."""

        async def so() -> bool:
            found = await self.state(app)
            return found.reached == number == found.effective

        await self.until(so, within, f"revision {number}")

    async def told(self, word: str, app: str = "shop", within: float = 120.0) -> AppStatus:
        """Wait until its status speaks of that."""

        async def so() -> AppStatus | None:
            found = await self.status(app)
            return found if word in f"{found.state} {found.phase} {found.reason}" else None

        found: AppStatus = await self.until(so, within, f"a status of {word!r}")
        return found

    async def gone(self, app: str = "shop") -> None:
        """Wait until an app is deleted."""

        async def so() -> bool:
            return await AppStore(self.call.client, KEYS).find(app) is None

        await self.until(so, what="the end of the app")

    # -- the agents ------------------------------------------------------------------------------
    async def act(self) -> None:
        """Act on intents until cancelled."""
        while True:
            page = await self.fleet.client.list(KEYS.tree("intent"))
            entries = [RawEntry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
            wanted = {KEYS.intent_parts(each.key): each for each in entries}
            for place, entry in wanted.items():
                if self._said.get(place) != entry.modify_index:
                    await self._obey(place, entry)
            for place in self._said.keys() - wanted.keys():
                await self.fleet.client.delete(KEYS.reality(*place))
                del self._said[place]
            await self.clock.sleep(SECONDS / 2)

    async def _obey(self, place: Place, entry: RawEntry) -> None:
        intent, now = codec.decode(Intent, entry.value, entry.key), self.clock.now()
        body = await self.fleet.client.read(KEYS.manifest(intent.manifest))
        bad = body is not None and b"--bad" in body.value
        ends = body is not None and b"--ends" in body.value
        said = Reality(
            manifest=intent.manifest,
            owner=intent.owner,
            phase="done" if ends else "running",
            exits=[Exit(now, 1 if bad else 0)] if ends else [],
            started=now,
            intent=entry.modify_index,
            health=Health("critical" if bad else "passing", now),
        )
        await self.fleet.put(KEYS.reality(*place), said)
        self._said[place] = entry.modify_index

    async def farm(self, name: str, **settings: Any) -> NodeFarm:
        return await self.fleet.start(name, kinds=KINDS, **settings)


@asynccontextmanager
async def app_fleet(*nodes: str, farms: int = 1, **settings: Any) -> AsyncIterator[AppFleet]:
    """A cluster with nodes and farms that keep apps."""
    async with fleet_of(*nodes) as fleet:
        made = AppFleet(fleet)
        acting = asyncio.create_task(made.act())
        for number in range(farms):
            await made.farm(f"f{number}", **settings)
        try:
            yield made
        finally:
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting
