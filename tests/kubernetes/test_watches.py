"""Informers of a real API server: what is known in the end, through compactions, restarts and restores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from farmd.kubernetes import informer as informers
from farmd.kubernetes import objects
from farmd.kubernetes.informer import Informer, Source
from farmd.kubernetes.objects import PODS, KubePod, ObjectMeta, Resource
from farmd.kubernetes.store import ObjectStore
from farmd.runtime.clock import SystemClock
from tests.fleet import eventually, in_time
from tests.kubernetes_server import ApiServer, Etcd, pod
from tests.mirror import Mirror

pytestmark = pytest.mark.xdist_group("kubernetes")


@asynccontextmanager
async def informed(
    transport, namespace: str, selector: str = "", *, kind: type = KubePod, of: Resource = PODS, **how: bool
) -> AsyncIterator[tuple[Informer, Mirror]]:
    """A running informer of a namespace's pods, or of others, and what its listener was told."""
    store: ObjectStore = ObjectStore()
    mirror = Mirror()
    store.listen(mirror)
    source = Source(of, namespace, selector, label="pods", **how)
    informer = Informer(transport, source, kind, store, clock=SystemClock(), rng=random.Random(1))
    task = asyncio.create_task(informer.run())
    try:
        await in_time(informer.until_synced())
        yield informer, mirror
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make(server: ApiServer, namespace: str, *names: str, **meta: object) -> None:
    for name in names:
        server.ask("POST", PODS.path(namespace), pod(name, **meta))


def remove(server: ApiServer, namespace: str, *names: str) -> None:
    for name in names:
        server.ask("DELETE", PODS.path(namespace, name), {"gracePeriodSeconds": 0})


def known(informer: Informer) -> dict[str, str]:
    return {each.metadata.name: each.metadata.resource_version for each in informer.store}


async def agrees(informer: Informer, mirror: Mirror, server: ApiServer, namespace: str) -> None:
    """Wait until store and server agree; the listener was told the same."""
    listed = server.ask("GET", PODS.path(namespace))["items"]
    expected = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in listed}

    async def equal() -> bool:
        return known(informer) == expected

    await eventually(equal, what=f"a store with {expected}")
    assert {name: each.metadata.resource_version for name, each in mirror.objects.items()} == expected


async def test_a_list_in_pages_and_a_watch_know_every_object(api, namespace, connect, monkeypatch):
    monkeypatch.setattr(objects, "PAGE", 3)
    make(api, namespace, *(f"p{i}" for i in range(8)))
    async with connect(api) as admin, informed(admin, namespace) as (informer, mirror):
        await agrees(informer, mirror, api, namespace)
        make(api, namespace, "late")
        remove(api, namespace, "p0")
        api.patch(PODS.path(namespace, "p1"), {"metadata": {"labels": {"a": "b"}}})
        await agrees(informer, mirror, api, namespace)


async def test_other_people_s_pods_are_never_sent(api, namespace, connect):
    make(api, namespace, "theirs")
    make(api, namespace, "ours", labels={"ours": "yes"})
    async with connect(api) as admin, informed(admin, namespace, "ours=yes") as (informer, _):
        assert list(known(informer)) == ["ours"]
        api.patch(PODS.path(namespace, "ours"), {"metadata": {"labels": {"ours": None}}})

        async def gone() -> bool:
            return not known(informer)

        await eventually(gone, what="a pod that lost its label leaves")


SECRETS = Resource("", "v1", "secrets", "Secret")


async def test_of_objects_that_are_watched_for_their_metadata_nothing_else_is_sent(api, namespace, connect):
    class Sent(msgspec.Struct):
        metadata: ObjectMeta
        data: dict[str, str] | None = None

    def secret(name: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "stringData": {"password": "hunter2"}}

    api.ask("POST", SECRETS.path(namespace), secret("listed"))
    async with (
        connect(api) as admin,
        informed(admin, namespace, kind=Sent, of=SECRETS, metadata=True) as (informer, _),
    ):
        api.ask("POST", SECRETS.path(namespace), secret("watched"))

        async def both() -> bool:
            return set(known(informer)) == {"listed", "watched"}

        await eventually(both, what="both secrets")
        assert [each.data for each in informer.store] == [None, None]


async def test_what_was_compacted_away_amid_pages_and_behind_a_watch_is_listed_anew(
    etcd, api, namespace, connect, monkeypatch
):
    monkeypatch.setattr(objects, "PAGE", 2)
    make(api, namespace, *(f"p{i}" for i in range(5)))
    with ApiServer(etcd, "--watch-cache=false") as direct:
        async with connect(direct) as admin:
            send, refused = admin.send, []

            async def compacting(request, timeout=10.0):
                try:
                    body = await send(request, timeout)
                except informers.Gone as error:
                    refused.append(error.reason)
                    raise
                if "continue" not in dict(request.params) and not refused:
                    make(api, namespace, "between")
                    await asyncio.to_thread(etcd.compact)
                return body

            admin.send = compacting
            async with informed(admin, namespace) as (informer, mirror):
                assert refused == ["Expired"]
                await agrees(informer, mirror, api, namespace)
                informer.store.version = 1  # forgotten long ago
                admin.access.credentials.refused()
                try:
                    await informer._watch()
                except informers.Gone as error:
                    refused.append(error.reason)
            assert refused == ["Expired", "Expired"]


async def test_a_right_that_is_taken_away_is_doubt_until_it_is_given_back(
    api, namespace, connect, monkeypatch
):
    monkeypatch.setattr(informers, "WATCH_SECONDS", (1.0, 2.0))
    monkeypatch.setattr(informers, "DOUBT_SECONDS", 0.2)
    read = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    api.grant("reader", read)
    make(api, namespace, "p")
    async with connect(api, "reader") as reader, informed(reader, namespace) as (informer, mirror):
        api.grant("reader", read | {"verbs": ["get"]})

        async def denied() -> bool:
            return "cannot" in informer.doubt

        await eventually(denied, what="the informer says what is denied")
        assert list(known(informer)) == ["p"]
        make(api, namespace, "q")
        api.grant("reader", read)
        await agrees(informer, mirror, api, namespace)


async def test_two_api_servers_on_one_etcd_are_one_history(etcd, api, namespace, connect):
    with ApiServer(etcd) as second:
        async with connect(second) as admin, informed(admin, namespace) as (informer, mirror):
            make(api, namespace, "a")
            await agrees(informer, mirror, api, namespace)
            object.__setattr__(admin.access, "url", api.url)  # as a balancer between both does
            await asyncio.to_thread(second.kill)
            make(api, namespace, "b")
            remove(api, namespace, "a")
            await agrees(informer, mirror, api, namespace)
            assert not mirror.resets


async def test_an_etcd_that_stops_and_one_that_is_restored_lose_nothing(connect):
    with Etcd() as etcd, ApiServer(etcd) as server:
        async with connect(server) as admin, informed(admin, "default") as (informer, mirror):
            make(server, "default", "a", "b")
            await agrees(informer, mirror, server, "default")
            await asyncio.to_thread(etcd.stop)
            saved = etcd.save()
            await asyncio.to_thread(etcd.start)
            await asyncio.to_thread(server.await_ready)
            make(server, "default", *(f"lost{i}" for i in range(5)))
            remove(server, "default", "b")
            await agrees(informer, mirror, server, "default")
            assert not mirror.resets
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(etcd.kill)
            etcd.put_back(saved)
            await asyncio.to_thread(etcd.start)
            await asyncio.to_thread(server.start)
            await agrees(informer, mirror, server, "default")
            assert set(known(informer)) == {"a", "b"}
            assert mirror.resets
