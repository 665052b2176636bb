"""A session trusts its own clock before it trusts Consul (R1, R2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from farmd.observe.recorder import Metrics
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.errors import NoLeader, OutcomeUnknown, SessionGone, SessionSuspended, StoreUnavailable
from store.ports import Request, Response
from store.sessions import Session
from tests.virtual import VirtualClock, embedded_client, embedded_server

TTL = 12.0
VALID = 0.9 * TTL


class Server:
    """Renews as the test says: at once, after some seconds, never, or with an error."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.renewals: list[float] = []
        self.answer: Callable[[], Exception | float | None] = lambda: None
        self.look: Callable[[], object] = lambda: "the session"
        self.late = 0.0

    async def create_session(self, **_: object) -> str:
        return "s-1"

    async def renew_session(self, session: str) -> None:
        self.renewals.append(self.clock.mono())
        await self._delay()
        answer = self.answer()
        if isinstance(answer, float):
            await self.clock.sleep(answer)
        elif answer is not None:
            raise answer

    async def session_info(self, session: str, *, mode: str) -> object:
        assert mode == "consistent", "any other read is answered from what is replayed so far"
        await self._delay()
        found = self.look()
        if isinstance(found, Exception):
            raise found
        return found

    async def _delay(self) -> None:
        """Answer late; the client waits for so long and not longer."""
        await self.clock.sleep(min(self.late, 3.0))
        if self.late > 3.0:
            raise StoreUnavailable("no answer")

    async def destroy_session(self, session: str) -> None:
        self.answer = lambda: SessionGone("gone")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def server(clock: VirtualClock) -> Server:
    return Server(clock)


@pytest.fixture
async def session(clock: VirtualClock, server: Server) -> AsyncIterator[Session]:
    opened = await Session.open(server, clock, name="t", ttl=TTL)  # type: ignore[arg-type]
    running = asyncio.create_task(opened.run())
    await clock.settle()
    yield opened
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_r1_it_is_renewed_at_a_third_of_the_ttl(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    start = clock.mono()
    await clock.advance(TTL)
    assert [at - start for at in server.renewals] == [4.0, 8.0, 12.0]
    assert session.valid()


async def test_r2_writing_is_suspended_before_the_ttl_is_over(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer = lambda: StoreUnavailable("no")
    await clock.advance(VALID - 0.01)
    session.require()
    await clock.advance(0.01)
    assert not session.valid()
    assert session.remaining() == 0
    assert not session.lost.is_set()
    with pytest.raises(SessionSuspended):
        session.require()


async def test_r2_validity_counts_from_when_the_renewal_was_sent(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer = lambda: 3.0
    await clock.advance(7.0)  # sent at 4, answered at 7
    server.answer = lambda: StoreUnavailable("no")
    await clock.advance(4.0 + VALID - 7.0 - 0.01)
    assert session.valid()
    await clock.advance(0.01)
    assert not session.valid()


async def test_r2_a_failed_renewal_is_tried_again_within_a_second(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer = lambda: StoreUnavailable("no")
    await clock.advance(4.0)
    server.renewals.clear()
    await clock.advance(3.0)
    assert len(server.renewals) >= 3


async def test_r2_a_later_good_renewal_resumes_it_in_a_new_epoch(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer = lambda: StoreUnavailable("no")
    await clock.advance(TTL)
    assert not session.valid()
    server.answer = lambda: None
    await clock.advance(1.0)
    assert session.valid()
    assert session.epoch == 1


async def test_a_session_that_was_never_suspended_stays_in_its_epoch(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    failing = iter([StoreUnavailable("no"), None] * 50)
    server.answer = lambda: next(failing)
    await clock.advance(60.0)
    assert session.valid()
    assert session.epoch == 0


async def test_r2_a_suspension_during_a_hanging_renewal_counts_as_one(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    """Sent while valid, answered after validity had ended: what was read meanwhile is too old (R15)."""
    server.answer = lambda: 8.0
    await clock.advance(VALID + 0.1)
    assert not session.valid()
    await clock.advance(4.0 + 8.0 - VALID)
    assert session.valid()
    assert session.epoch == 1


async def test_r2_hanging_renewals_suspend_and_later_resume(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer = lambda: 60.0
    await clock.advance(TTL)
    assert not session.valid()
    server.answer = lambda: None
    await clock.advance(60.0)
    assert session.valid()
    assert not session.lost.is_set()


async def test_r2_a_404_that_a_consistent_read_confirms_is_final(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    server.answer, server.look = lambda: SessionGone("404"), lambda: None
    await clock.advance(4.0)
    assert session.lost.is_set()
    assert not session.valid()
    server.answer = lambda: None
    server.renewals.clear()
    await clock.advance(60.0)
    assert server.renewals == []
    assert not session.valid()


@pytest.mark.parametrize("look", [NoLeader("replaying"), "the session"], ids=["no answer", "found"])
async def test_r2_a_404_that_no_consistent_read_confirms_suspends_until_a_good_renewal(
    clock: VirtualClock, server: Server, session: Session, look: object
) -> None:
    """A server that replays its log does not know the session yet."""
    server.answer, server.look = lambda: SessionGone("404"), lambda: look
    await clock.advance(4.0)
    assert not session.valid(), "although the last good renewal is only 4 s old"
    await clock.advance(2 * TTL)
    assert not session.valid()
    assert not session.lost.is_set()
    server.answer = lambda: None
    await clock.advance(1.0)
    assert session.valid()
    assert session.epoch == 1, "what was read from such a server is too old (R15)"


async def test_r21_a_known_session_is_not_given_up_for_a_404_that_no_consistent_read_confirms(
    clock: VirtualClock, server: Server
) -> None:
    server.answer, server.look = lambda: SessionGone("404"), lambda: "the session"
    with pytest.raises(StoreUnavailable):
        await Session.open(server, clock, name="t", ttl=TTL, session_id="s-1")  # type: ignore[arg-type]


async def test_r2_a_session_whose_renewals_are_answered_too_late_is_left_to_expire(
    clock: VirtualClock, server: Server, session: Session
) -> None:
    """Else the server would keep the locks of a farm that may not work, and no other farm would get them."""
    server.late = 4.0
    await clock.advance(VALID + 3.0)
    server.renewals.clear()
    await clock.advance(2 * TTL)
    assert server.renewals == []
    assert not session.lost.is_set()
    server.late = 0.0
    await clock.advance(4.0)
    assert session.valid()
    server.late, server.look = 4.0, lambda: None  # it expired meanwhile
    await clock.advance(3 * TTL)
    server.late = 0.0
    await clock.advance(4.0)
    assert session.lost.is_set()


class Silent(InProcessTransport):
    """A way to the server that swallows requests while it is ``silent``."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(embedded_server(clock))
        self.clock, self.silent = clock, False

    async def send(self, request: Request, timeout: float) -> Response:
        if self.silent:
            await self.clock.sleep(timeout)
            raise OutcomeUnknown("no answer")
        return await super().send(request, timeout)


async def test_r2_a_session_outlives_a_silence_that_is_shorter_than_it_lives_on_the_server() -> None:
    """The read before a renewal that went unanswered must not hang until the session has expired."""
    clock = VirtualClock()
    transport = Silent(clock)
    session = await Session.open(ConsulClient(transport, clock=clock), clock, name="t", ttl=10.0)
    running = asyncio.create_task(session.run())
    await clock.advance(4.0)
    transport.silent = True
    heard = session.heard
    assert heard == pytest.approx(clock.mono() - 4.0 + 10.0 / 3)
    await clock.advance(11.0)
    assert (session.valid(), session.heard) == (False, heard)
    transport.silent = False
    await clock.advance(5.0)
    assert (session.valid(), session.lost.is_set()) == (True, False)
    assert session.heard > heard
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_r4_a_destroyed_session_writes_nothing_more(clock: VirtualClock, session: Session) -> None:
    await session.destroy()
    with pytest.raises(SessionSuspended):
        session.require()


async def test_r1_a_session_that_nobody_renews_expires_on_the_server() -> None:
    clock = VirtualClock()
    client = embedded_client(clock)
    session = await Session.open(client, clock, name="t", ttl=10.0)
    assert await client.put("locks/a", b"", acquire=session.id)
    await clock.advance(session.remaining())
    assert not session.valid(), "by its own clock it is over first"
    held = await client.read("locks/a")
    assert held is not None
    await clock.advance(20.0)
    assert await client.read("locks/a") is None, "behaviour delete (R1)"
    with pytest.raises(SessionGone):
        await client.renew_session(session.id)


async def test_r21_a_known_session_is_taken_up_again_and_an_expired_one_replaced() -> None:
    clock = VirtualClock()
    client = embedded_client(clock)
    first = await Session.open(client, clock, name="t", ttl=10.0)
    await clock.advance(5.0)
    again = await Session.open(client, clock, name="t", ttl=10.0, session_id=first.id)
    assert again.id == first.id
    assert again.remaining() == pytest.approx(9.0)
    await clock.advance(30.0)
    new = await Session.open(client, clock, name="t", ttl=10.0, session_id=first.id)
    assert new.id != first.id
    assert new.valid()


async def measured(
    clock: VirtualClock, server: Server
) -> tuple[Session, CollectorRegistry, asyncio.Task[None]]:
    """A session that runs, and what it counts."""
    registry = CollectorRegistry()
    session = await Session.open(server, clock, name="t", ttl=TTL, recorder=Metrics(registry))  # type: ignore[arg-type]
    return session, registry, asyncio.create_task(session.run())


async def test_r2_each_suspension_and_each_return_is_counted_once(
    clock: VirtualClock, server: Server
) -> None:
    session, registry, running = await measured(clock, server)
    for _ in range(2):
        server.answer = lambda: StoreUnavailable("no")
        await clock.advance(2 * TTL)
        server.answer = lambda: None
        await clock.advance(TTL)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    counted = {
        event: registry.get_sample_value("farmd_session_events_total", {"event": event})
        for event in ("suspended", "resumed")
    }
    assert counted == {"suspended": 2, "resumed": 2}
    assert session.epoch == 2


async def test_the_time_of_a_renewal_is_that_of_good_renewals_alone(
    clock: VirtualClock, server: Server
) -> None:
    """Neither the read that goes before it, after a silence, nor what had no answer is the time of one."""
    _, registry, running = await measured(clock, server)
    server.late = 4.0
    await clock.advance(2 * TTL)
    assert registry.get_sample_value("farmd_session_renew_seconds_count") in (None, 0)
    server.late, server.renewals = 1.0, []
    await clock.advance(TTL)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    number = registry.get_sample_value("farmd_session_renew_seconds_count")
    assert number
    assert registry.get_sample_value("farmd_session_renew_seconds_sum") == number * 1.0
