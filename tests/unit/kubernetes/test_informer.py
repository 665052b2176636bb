"""An informer's store comes to equal the server's objects whatever happens, and tells each change once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farmd.kubernetes import informer as informers
from farmd.kubernetes.contact import Contact
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.objects import SERVICES, KubeService
from farmd.kubernetes.store import ObjectStore
from store.farms import ClusterReport
from tests.effort import tries
from tests.mirror import Mirror
from tests.model_apiserver import ModelApiServer
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock

NAMES = ("a", "b", "c", "d", "e")


class World:
    """A model server, an informer of it, and a listener, in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = ModelApiServer(self.clock)
        self.store: ObjectStore[KubeService] = ObjectStore()
        self.mirror = Mirror()
        self.store.listen(self.mirror)
        self.informer = Informer(
            self.server, Source(SERVICES), KubeService, self.store, clock=self.clock, rng=random.Random(1)
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> World:
        self._task = asyncio.create_task(self.informer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert not self._task.done(), self._task.exception()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def known(self) -> dict[str, str]:
        """Name → version, as the store has it."""
        return {each.metadata.name: each.metadata.resource_version for each in self.store}

    def there(self) -> dict[str, str]:
        """Name → version, as the server has it."""
        return {name: one["metadata"]["resourceVersion"] for name, one in self.server.state.objects.items()}

    def published(self) -> float:
        """How many objects a scrape says that do not decode."""
        contact, recorder = Contact(self.server, "prod", ClusterReport()), CountingRecorder()
        contact.informers = [self.informer]
        contact.publish(recorder)
        return recorder.values["farmd_invalid_records", "kubernetes_other"]

    async def rests(self) -> None:
        """Once nothing fails any more and time went by, everything agrees."""
        self.server.trouble = ""
        await self.clock.advance(300)
        assert self.known() == self.there()
        assert {
            name: each.metadata.resource_version for name, each in self.mirror.objects.items()
        } == self.there()

    async def do(self, step: tuple[str, Any]) -> None:
        """One step of an example."""
        word, value = step
        if word == "own write":
            self.store.own(msgspec.convert(self.server.write(value), KubeService))
        elif word == "late response":
            response = msgspec.convert(self.server.write(value), KubeService)
            await self.clock.advance(1)
            self.store.own(response)
        elif word == "restore":
            # The server is away for longer than a reconnection takes, as one whose etcd is restored is.
            self.server.cut()
            self.server.trouble = "away"
            await self.clock.advance(15)
            self.server.restore()
            self.server.trouble = ""
            await self.clock.advance(value)
        elif word == "trouble":
            self.server.trouble = value
        elif word == "advance":
            await self.clock.advance(value)
        elif word == "anew":
            self.server.write(value, anew=True)
        elif word in ("write", "delete"):
            getattr(self.server, word)(value)
        else:
            getattr(self.server, word)()


name = st.sampled_from(NAMES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "delete", "anew", "own write", "late response"]), name),
        st.tuples(st.sampled_from(["cut", "compact", "silence", "save", "bookmark", "swap"]), st.none()),
        st.tuples(st.just("restore"), st.sampled_from([0, 0.1, 1])),
        st.tuples(st.just("trouble"), st.sampled_from(["", "away", "forbidden", "missing", "throttled"])),
        st.tuples(st.just("advance"), st.sampled_from([0.005, 0.02, 1, 20, 100])),
    ),
    max_size=40,
)


@settings(max_examples=tries(120))
@given(STEPS)
@example([("save", None), ("own write", "a"), ("restore", 0)])
@example([("advance", 1), ("save", None), ("write", "a"), ("silence", None), ("restore", 0), ("write", "b")])
@example([("advance", 1), ("write", "a"), ("silence", None), ("delete", "a"), ("compact", None)])
def test_the_store_comes_to_equal_the_server_whatever_happens(steps):
    async def scenario() -> None:
        async with World() as world:
            for step in steps:
                await world.do(step)
            await world.rests()

    asyncio.run(scenario())


async def test_a_watch_that_dies_in_silence_is_noticed():
    async with World() as world:
        world.server.write("a")
        await world.clock.advance(1)
        world.server.silence()
        world.server.delete("a")
        await world.clock.advance(informers.WATCH_SECONDS[1] + informers.DEADLINE_AFTER_SECONDS + 1)
        assert world.known() == {}
        assert world.mirror.told == ["added a", "deleted a"]


async def test_a_watch_goes_on_from_the_last_version_without_a_list():
    async with World() as world:
        world.server.write("a")
        await world.clock.advance(1)
        lists = world.server.lists
        for _ in range(5):
            world.server.cut()
            world.server.write("a")
            await world.clock.advance(100)
        assert world.known() == world.there()
        assert world.server.lists == lists


async def test_a_gap_while_objects_come_and_go_is_told_as_each_change_once():
    async with World() as world:
        for each in ("a", "b"):
            world.server.write(each)
        await world.clock.advance(1)
        world.server.silence()
        world.server.delete("a")
        world.server.write("b", anew=True)
        world.server.write("c")
        world.server.compact()
        await world.clock.advance(100)
        assert sorted(world.mirror.told[2:]) == ["added b", "added c", "deleted a", "deleted b"]


async def test_a_watch_that_is_refused_as_too_much_waits_as_long_as_the_server_says():
    async with World() as world:
        await world.clock.advance(1)
        world.server.trouble, world.server.retry_after = "throttled", "8"
        world.server.cut()
        await world.clock.advance(8)
        assert world.server.refused == 1
        await world.rests()


async def test_an_unreadable_collection_is_doubt_and_no_absence():
    for trouble in ("forbidden", "missing"):
        async with World() as world:
            world.server.write("a")
            await world.clock.advance(1)
            world.server.trouble = trouble
            world.server.cut()
            await world.clock.advance(120)
            assert world.known() == world.there() != {}
            assert world.informer.doubt
            world.server.trouble = ""
            await world.clock.advance(60)
            assert not world.informer.doubt


async def test_a_page_that_the_server_forgot_is_read_again_without_pages():
    async with World() as world:
        for each in NAMES:
            world.server.write(each)

        async def forget() -> None:
            await world.clock.sleep(0.015)
            world.server.compact()

        await asyncio.gather(forget(), world.clock.advance(5))
        assert world.known() == world.there()
        assert world.server.lists <= 3


async def test_a_restored_server_is_told_as_a_reset():
    async with World() as world:
        world.server.write("a")
        await world.clock.advance(1)
        world.server.save()
        world.server.write("b")
        await world.clock.advance(1)
        await world.do(("restore", 60))
        assert world.known() == world.there()
        assert world.mirror.resets == 1


async def test_an_object_that_does_not_decode_is_broken_alone():
    async with World() as world:
        good = world.server.write("a")
        await world.clock.advance(1)
        good["metadata"]["labels"] = "none"
        world.server._tell("MODIFIED", good)
        world.server.write("b")
        await world.clock.advance(1)
        assert set(world.known()) == {"a", "b"}
        assert list(world.store.broken) == [("ns", "a")]
        assert world.published() == 1
        world.server.delete("a")
        await world.clock.advance(1)
        assert set(world.known()) == {"b"}
        assert not world.store.broken
        assert world.published() == 0


async def test_an_own_write_is_known_before_the_watch_tells_it_and_is_told_once():
    async with World() as world:
        await world.clock.advance(1)
        world.server.silence()
        await world.do(("own write", "a"))
        assert world.known() == world.there()
        await world.clock.advance(100)
        assert world.mirror.told == ["added a"]


async def test_an_own_write_s_late_response_brings_nothing_back():
    async with World() as world:
        await world.clock.advance(1)
        response = msgspec.convert(world.server.write("a"), KubeService)
        world.server.delete("a")
        await world.clock.advance(1)
        world.store.own(response)
        assert world.known() == {}


def test_an_object_whose_owner_changes_is_found_under_the_new_one_alone():
    store = ObjectStore(owner=lambda each: each.metadata.labels.get("app", ""))
    for version, app in enumerate(("shop", "till", ""), start=1):
        meta = {"name": "a", "namespace": "x", "uid": "1", "resourceVersion": str(version)}
        store.seen(msgspec.convert({"metadata": {**meta, "labels": {"app": app}}}, KubeService))
        owned = {owner: len(list(store.owned_by(owner))) for owner in ("shop", "till", "")}
        assert owned == {owner: int(owner == app) for owner in owned}
