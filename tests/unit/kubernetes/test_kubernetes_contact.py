"""A farm knows a cluster's feature while it reaches the cluster that is meant (R11), in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from farmd.farm.members import Features
from farmd.kubernetes.contact import UNREACHED_SECONDS, Contact
from farmd.kubernetes.errors import (
    Denials,
    Forbidden,
    KubernetesError,
    NotFound,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from farmd.kubernetes.transport import ApiRequest
from store import codec
from store.farms import ClusterReport, PinnedCluster
from store.keys import Keys
from tests.fleet import Inbox
from tests.virtual import VirtualClock, embedded_client

FEATURE = "kubernetes.prod"
KEYS = Keys()


class Server:
    """What an API server answers about kube-system."""

    def __init__(self, clock: VirtualClock) -> None:
        self.uid = "one"
        self.trouble: KubernetesError | None = None
        self.denials = Denials(clock)
        self.asked = 0
        self.late = 0.0
        self.clock, self.ahead = clock, 0.0

    def now(self) -> float:
        return self.clock.now() + self.ahead

    async def send(self, request: ApiRequest, timeout: float) -> bytes:
        self.asked += 1
        assert request.path == "/api/v1/namespaces/kube-system"
        await self.clock.sleep(min(self.late, timeout))
        if self.late > timeout:
            raise Unavailable("no answer")
        if self.trouble is not None:
            raise self.trouble
        return json.dumps({"metadata": {"uid": self.uid}}).encode()


class World:
    """One farm's contact, on an embedded store."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = Server(self.clock)
        self.features, self.alerts = Features(), Inbox()
        self.client = embedded_client(self.clock)
        self.context: Any = SimpleNamespace(
            client=self.client,
            keys=KEYS,
            clock=self.clock,
            rng=random.Random(1),
            farm="a",
            actor="farm/a",
            features=self.features,
            alerter=self.alerts,
            caches=SimpleNamespace(farms=SimpleNamespace(entries={})),
        )
        self.contact = Contact(self.server, "prod", ClusterReport())  # type: ignore[arg-type]

    @property
    def known(self) -> bool:
        return FEATURE in self.features()

    async def pinned(self) -> PinnedCluster | None:
        entry = await self.client.read(KEYS.other_cluster("prod"))
        return None if entry is None else codec.decode(PinnedCluster, entry.value, entry.key)

    async def pin(self, uid: str) -> None:
        await self.client.put(KEYS.other_cluster("prod"), codec.encode(PinnedCluster(uid=uid)))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    found = World()
    running = asyncio.create_task(found.contact.run(found.context))
    yield found
    assert not running.done(), running.exception()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_feature_goes_after_half_a_minute_without_an_answer_and_comes_back_with_one() -> None:
    async with world() as found:
        await found.clock.advance(1)
        assert found.known
        found.server.trouble = Unavailable("away")
        await found.clock.advance(UNREACHED_SECONDS - 6)
        assert found.known
        await found.clock.advance(12)
        assert not found.known
        found.server.trouble = None
        await found.clock.advance(6)
        assert found.known


async def test_a_server_that_answers_late_is_reached() -> None:
    async with world() as found:
        await found.clock.advance(1)
        found.server.late = 6.0
        await found.clock.advance(120)
        assert found.known


@pytest.mark.parametrize(
    ("trouble", "known"),
    [
        (Forbidden("no rights", status=403, reason="Forbidden"), True),
        (NotFound("none yet", status=404, reason="NotFound"), True),
        (Unauthorized("who are you", status=401, reason="Unauthorized"), False),
        (NotFound("a proxy's page", status=404), False),
        (Unavailable("down", status=503, reason="ServiceUnavailable"), False),
    ],
)
async def test_a_server_that_answers_is_reached_whether_it_tells_its_identity_or_not(
    trouble: KubernetesError, known: bool
) -> None:
    async with world() as found:
        found.server.trouble = trouble
        await found.clock.advance(6)
        assert found.known is known
        assert await found.pinned() in (None, PinnedCluster())


async def test_an_identity_is_pinned_once_it_can_be_read_and_never_replaced_by_a_farm() -> None:
    async with world() as found:
        await found.clock.advance(1)
        first = await found.pinned()
        assert first is not None
        assert (first.uid, first.by) == ("one", "farm/a")
        found.server.uid = "two"
        await found.clock.advance(600)
        again = await found.pinned()
        assert again is not None
        assert again.uid == "one"


async def test_another_cluster_behind_the_address_is_evidence_and_no_work() -> None:
    async with world() as found:
        await found.clock.advance(1)
        assert found.contact.stranger() is None
        found.server.uid = "two"
        await found.clock.advance(6)
        assert not found.known
        assert found.contact.stranger() == "kubernetes prod: it is another cluster than before"
        await found.clock.advance(66)
        assert list(found.alerts.firing) == ["kubernetes_identity_prod"]
        await found.pin("two")
        await found.clock.advance(12)
        assert found.known
        assert found.contact.stranger() is None
        assert found.alerts.resolved == ["kubernetes_identity_prod"]


async def test_the_end_of_an_alert_is_told_once_and_stands_in_the_record_until_it_is_delivered() -> None:
    key = "kubernetes_unreachable_prod"
    async with world() as found:
        await found.clock.advance(1)
        found.server.trouble = Unavailable("away")
        await found.clock.advance(70)
        assert list(found.alerts.firing) == [key]
        found.alerts.owing.add(key)
        found.server.trouble = None
        await found.clock.advance(20)
        owing = await found.pinned()
        assert owing is not None
        assert owing.alerts == [key]
        found.alerts.owing.clear()
        await found.clock.advance(120)
        after = await found.pinned()
        assert after is not None
        assert after.alerts == []
        assert found.alerts.resolved == [key]


async def test_an_absence_is_confirmed_in_the_cluster_that_is_meant_alone() -> None:
    async with world() as found:
        await found.clock.advance(1)
        await found.contact.confirm(found.context)
        await found.clock.advance(2)
        found.server.uid = "two"
        with pytest.raises(UnexpectedAnswer, match="another cluster"):
            await found.contact.confirm(found.context)


async def test_a_pin_that_does_not_decode_stops_the_work_and_is_told() -> None:
    async with world() as found:
        await found.client.put(KEYS.other_cluster("prod"), b"[]")
        await found.clock.advance(70)
        assert not found.known
        assert "meta/kubernetes/prod" in found.features.reports["prod"].troubles["identity"]


async def test_a_clock_that_differs_is_reported_once_however_its_seconds_vary() -> None:
    async with world() as found:
        found.server.ahead = 3600.0
        await found.clock.advance(66)
        said = found.features.reports["prod"]
        assert said.troubles == {"clock-skew": "its clock is 3600 s ahead of this machine's"}
        found.server.ahead = 3601.0
        await found.clock.advance(60)
        assert found.features.reports["prod"] is said
        assert not found.alerts.fired


async def test_two_kinds_share_one_contact() -> None:
    async with world() as found:
        second = asyncio.create_task(found.contact.run(found.context))
        await found.clock.advance(26)
        assert found.server.asked == 6
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
