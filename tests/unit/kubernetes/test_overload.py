"""An API server that has too much to do, in virtual time: it answers late, not at all, or with 429."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from farmd.farm.members import Features
from farmd.kubernetes.access import RequestIdentity
from farmd.kubernetes.contact import UNREACHED_SECONDS, Contact
from farmd.kubernetes.errors import TooManyRequests, Unavailable, UnknownOutcome
from farmd.kubernetes.pace import MOST_IN_FLIGHT, Pace, Priority
from farmd.kubernetes.transport import LONGEST_WAIT_SECONDS, REQUEST_SECONDS, ApiRequest, KubernetesTransport
from store import http
from store.errors import SessionSuspended
from store.farms import ClusterReport
from store.keys import Keys
from tests.fleet import Inbox
from tests.virtual import VirtualClock, embedded_client

POST = ApiRequest("POST", "/api/v1/namespaces/a/pods", body=b"{}", priority=Priority.CREATE)
READ = ApiRequest("GET", "/api/v1/namespaces/a/pods/bert-worker-0")
PROBE = ApiRequest("GET", "/api/v1/namespaces/kube-system", priority=Priority.PROBE)
WELL = 0.01


class Server(KubernetesTransport):
    """A transport to a server that takes ``seconds`` for an answer, or refuses at once as too much.

    ``sent`` and ``done`` count requests. The credential of each takes ``login_seconds``.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        access: Any = SimpleNamespace(credentials=self, url="http://server", server_name=None, proxy=None)
        super().__init__(access, clock=self.clock, rng=random.Random(1))
        self.seconds = WELL
        self.login_seconds = 0.0
        self.refuses = False
        self.sent = self.done = 0
        self.under_way = self.most_under_way = 0

    async def login(self) -> RequestIdentity:
        if self.login_seconds:
            await self.clock.sleep(self.login_seconds)
        return RequestIdentity({}, True)

    async def _once(self, request: ApiRequest, login: RequestIdentity, timeout: float) -> bytes:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._answered(request, timeout)
        finally:
            self.under_way -= 1

    async def _answered(self, request: ApiRequest, timeout: float) -> bytes:
        self.sent += 1
        seconds, refuses = self.seconds, self.refuses
        await self.clock.sleep(WELL if refuses else min(seconds, timeout))
        if refuses:
            refused = TooManyRequests("too many requests", status=429)
            refused.fields["retry_after"] = "1"
            raise refused
        if seconds > timeout:
            lost = http.Lost("it took too long")
            lost.__cause__ = TimeoutError()
            raise (UnknownOutcome if request.write else Unavailable)("no answer") from lost
        self.done += 1
        return b"{}"

    def begin(self, count: int, request: ApiRequest = POST) -> list[asyncio.Task[bytes]]:
        """Send a request of each of so many jobs."""
        return [asyncio.create_task(self.send(replace(request, key=str(key)))) for key in range(count)]


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    async with Server() as server:
        yield server


async def outcomes(tasks: list[asyncio.Task[bytes]]) -> list[Any]:
    """How requests ended, all of which are over."""
    assert all(each.done() for each in tasks)
    return [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)]


async def test_refusals_of_what_was_on_its_way_together_halve_the_limit_once():
    async with serving() as server:
        server.refuses = True
        tasks = server.begin(100)
        await server.clock.advance(0.5)
        assert (server.sent, server.pace.limit) == (MOST_IN_FLIGHT, MOST_IN_FLIGHT // 2)
        server.refuses = False
        await server.clock.advance(5)
        assert await outcomes(tasks) == [bytes] * 100


async def test_refused_requests_come_again_under_the_halved_limit():
    async with serving() as server:
        server.refuses = True
        tasks = server.begin(MOST_IN_FLIGHT)
        await server.clock.advance(0.5)
        assert (server.sent, server.most_under_way) == (MOST_IN_FLIGHT, MOST_IN_FLIGHT)
        server.refuses, server.seconds, server.most_under_way = False, 1.0, 0
        await server.clock.advance(4.0)
        assert await outcomes(tasks) == [bytes] * MOST_IN_FLIGHT
        assert server.most_under_way <= MOST_IN_FLIGHT // 2 + 2, "one more is allowed each second"


async def test_the_limit_does_not_grow_while_the_server_wants_to_be_left_alone():
    clock = VirtualClock()
    pace = Pace(clock)
    pace.congested(clock.mono(), pause=20.0)
    await clock.advance(20.0)
    assert pace.limit == MOST_IN_FLIGHT // 2
    await clock.advance(3.0)
    assert pace.limit == MOST_IN_FLIGHT // 2 + 3


async def test_requests_that_time_out_together_halve_the_limit_once():
    async with serving() as server:
        server.seconds = 1000.0
        tasks = server.begin(MOST_IN_FLIGHT)
        await server.clock.advance(REQUEST_SECONDS)
        assert server.pace.limit == MOST_IN_FLIGHT // 2
        tasks += server.begin(100)
        await server.clock.advance(1)
        assert server.sent == MOST_IN_FLIGHT + MOST_IN_FLIGHT // 2
        server.seconds = WELL
        await server.clock.advance(REQUEST_SECONDS)
        found = await outcomes(tasks)
        assert found.count(UnknownOutcome) == server.sent - server.done == 48


async def test_a_server_that_takes_six_seconds_leaves_no_outcome_unknown_however_many_wait():
    async with serving() as server:
        server.seconds = 6.0
        tasks = server.begin(4 * MOST_IN_FLIGHT)
        await server.clock.advance(4 * 6.0 + 1)
        assert await outcomes(tasks) == [bytes] * len(tasks)


async def test_a_refused_write_is_not_sent_again_so_late_that_its_outcome_might_stay_unknown():
    async with serving() as server:
        server.refuses = True
        (task,) = server.begin(1)
        await server.clock.advance(REQUEST_SECONDS / 2)
        server.refuses, server.seconds = False, 6.0
        await server.clock.advance(60)
        assert await outcomes([task]) == [TooManyRequests]


async def test_a_write_that_waited_is_not_sent_once_its_session_may_be_over():
    async with serving() as server:
        server.seconds = 6.0
        ends = server.clock.mono() + 5.0

        def validity() -> float:
            if (left := ends - server.clock.mono()) <= 0:
                raise SessionSuspended("over")
            return left

        blocking = server.begin(MOST_IN_FLIGHT)
        late = server.begin(1, replace(POST, validity=validity))
        await server.clock.advance(13)
        assert await outcomes(late) == [SessionSuspended]
        assert server.sent == len(blocking)


async def test_a_write_whose_credential_took_long_is_not_sent_once_its_session_may_be_over():
    async with serving() as server:
        server.login_seconds = 20.0
        ends = server.clock.mono() + 5.0
        tasks = server.begin(1, replace(POST, validity=lambda: ends - server.clock.mono()))
        await server.clock.advance(30)
        assert (await outcomes(tasks), server.sent) == ([Unavailable], 0)
        tasks = server.begin(1)
        await server.clock.advance(30)
        assert (await outcomes(tasks), server.sent) == ([bytes], 1)


async def test_a_write_that_waited_for_very_long_is_surely_not_sent():
    async with serving() as server:
        server.seconds = 1000.0
        tasks = server.begin(300)
        await server.clock.advance(LONGEST_WAIT_SECONDS + 2 * REQUEST_SECONDS)
        found = await outcomes(tasks)
        assert found.count(UnknownOutcome) == server.sent < 100
        assert found.count(Unavailable) == 300 - server.sent


async def test_a_probe_waits_for_no_place():
    async with serving() as server:
        server.seconds = 1000.0
        tasks = server.begin(MOST_IN_FLIGHT)
        await server.clock.advance(1)
        server.seconds = WELL
        probes = server.begin(1, PROBE)
        await server.clock.advance(1)
        assert await outcomes(probes) == [bytes]
        await server.clock.advance(REQUEST_SECONDS)
        assert await outcomes(tasks) == [UnknownOutcome] * MOST_IN_FLIGHT


async def test_workers_that_confirm_an_absence_at_once_ask_no_more_than_other_requests_may():
    async with serving() as server:
        contact, context = Contact(server, "prod", ClusterReport()), SimpleNamespace(clock=server.clock)
        server.seconds = 6.0
        tasks = [asyncio.create_task(contact.confirm(context)) for _ in range(3 * MOST_IN_FLIGHT)]
        await server.clock.advance(1)
        assert server.sent == MOST_IN_FLIGHT
        await server.clock.advance(30)
        assert len(await outcomes(tasks)) == 3 * MOST_IN_FLIGHT


async def test_a_server_that_is_well_again_is_noticed_by_a_probe():
    async with serving() as server:
        server.seconds = 1000.0
        tasks = server.begin(MOST_IN_FLIGHT)
        await server.clock.advance(REQUEST_SECONDS)
        tasks += server.begin(MOST_IN_FLIGHT)
        await server.clock.advance(5)
        server.seconds = WELL
        probes = server.begin(1, PROBE)
        await server.clock.advance(1)
        assert await outcomes(probes) == [bytes]
        assert server.done == 1 + MOST_IN_FLIGHT // 2
        await server.clock.advance(REQUEST_SECONDS)
        assert len(await outcomes(tasks)) == 2 * MOST_IN_FLIGHT


class Identified(Server):
    """It tells at once who it is, however long everything else takes."""

    async def _answered(self, request: ApiRequest, timeout: float) -> bytes:
        if request.path == PROBE.path:
            return b'{"metadata": {"uid": "one"}}'
        return await super()._answered(request, timeout)


async def test_a_farm_whose_requests_all_wait_still_knows_that_the_server_is_there():
    async with Identified() as server:
        server.seconds = 1000.0
        tasks, features = server.begin(10 * MOST_IN_FLIGHT, READ), Features()
        context: Any = SimpleNamespace(
            client=embedded_client(server.clock),
            keys=Keys(),
            clock=server.clock,
            rng=random.Random(1),
            farm="a",
            actor="farm/a",
            features=features,
            alerter=Inbox(),
            caches=SimpleNamespace(farms=SimpleNamespace(entries={})),
        )
        running = asyncio.create_task(Contact(server, "prod", ClusterReport()).run(context))
        for _ in range(6):
            tasks += server.begin(10 * MOST_IN_FLIGHT, READ)
            await server.clock.advance(UNREACHED_SECONDS / 3)
            assert server.under_way
            assert "kubernetes.prod" in features()
        for each in (running, *tasks):
            each.cancel()
        await asyncio.gather(running, *tasks, return_exceptions=True)
